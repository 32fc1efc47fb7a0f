"""CUDA graphs of a program on the emulator: a capture changes nothing, a replay runs launches and operators again."""

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
pytest.importorskip("triton.language")

from tests.triton import kernels  # noqa: E402

import warploom.triton  # noqa: E402


def add(x, y, out):
    kernels.add[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)


def test_a_replay_reads_and_writes_the_captured_memory():
    with warploom.triton.machine() as machine:
        x, out = torch.randn(100, device="cuda"), torch.zeros(100, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert torch.cuda.is_current_stream_capturing()
            add(x, x, out)
            more = torch.relu(out) + 1
            picked = more[10:20].sum()
        assert not torch.cuda.is_current_stream_capturing()
        assert not machine.launches  # a capture executes nothing
        assert not out.any()
        for _ in range(3):
            x.copy_(torch.randn(100))
            graph.replay()
            assert torch.equal(out, x + x)
            assert torch.equal(more, torch.relu(out) + 1)
            assert torch.equal(picked, more[10:20].sum())
        assert len(machine.launches) == 3


def test_operators_in_place_run_once_for_each_replay():
    with warploom.triton.machine():
        count, log = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
            count += 1
            add(count, count, log)
            log.mul_(3).clamp_(max=100)
        assert count.tolist() == log.tolist() == [0] * 4
        for step in range(1, 4):
            graph.replay()
            assert count.tolist() == [step] * 4
            assert log.tolist() == [6 * step] * 4


def test_a_captured_operator_may_read_what_a_captured_kernel_wrote():
    """Indices on a CPU must be valid, also during the capture."""
    with warploom.triton.machine():
        index, base = torch.empty(8, dtype=torch.int64, device="cuda"), torch.arange(8, device="cuda")
        index.fill_(10**6)
        table = torch.randn(15, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            add(base, base, index)
            picked = table[index]
        graph.replay()
        assert torch.equal(picked, table[2 * base])


def test_a_custom_op_in_a_graph_runs_once():
    with warploom.triton.machine() as machine:
        total = torch.zeros(8, device="cuda")

        def accumulate(x: torch.Tensor) -> None:
            add(x, torch.ones(8, device="cuda"), x)

        op = torch.library.custom_op("warploom_test::accumulate", accumulate, mutates_args=("x",))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            op(total)
        graph.replay()
        graph.replay()
        assert total.tolist() == [2] * 8
        assert len(machine.launches) == 2


def test_graphed_callables():
    with warploom.triton.machine():
        module = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.SiLU()).cuda()
        reference = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.SiLU()).cuda()
        reference.load_state_dict(module.state_dict())
        graphed = torch.cuda.make_graphed_callables(module, (torch.randn(3, 6, device="cuda", requires_grad=True),))
        for _ in range(2):
            x = torch.randn(3, 6, device="cuda", requires_grad=True)
            y = x.detach().clone().requires_grad_()
            for each, given in ((graphed, x), (reference, y)):
                each.zero_grad()
                each(given).square().sum().backward()
            torch.testing.assert_close(graphed(x), reference(y))
            torch.testing.assert_close(x.grad, y.grad)
            torch.testing.assert_close(module[0].weight.grad, reference[0].weight.grad)


@pytest.mark.parametrize("wait", [lambda x: x.sum().item(), lambda x: x.nonzero(), lambda x: torch.cuda.synchronize()])
def test_a_wait_for_the_gpu_cannot_be_captured(wait):
    with warploom.triton.machine():
        x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()

        def capture():
            with torch.cuda.graph(graph):
                x.add_(1)
                wait(x)

        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            capture()
        assert not torch.cuda.is_current_stream_capturing()
        assert x.tolist() == [1] * 3


def test_wrong_order():
    with warploom.triton.machine():
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            graph.replay()
        with pytest.raises(RuntimeError, match="not capturing"):
            graph.capture_end()
        with torch.cuda.graph(graph), pytest.raises(RuntimeError, match="not permitted"):
            torch.cuda.CUDAGraph().capture_begin()
