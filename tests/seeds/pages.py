"""The members of the five pages, and the test that exercises each.

A row is a member's name and the name of a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

CONTEXT, OUTPUT, INPUT = "test_warp_context", "test_output_pipeline", "test_input_pipeline"
EPI_LOAD, EXAMPLES, PIPELINE, MEMORY = "test_epi_load", "test_seed_examples", "test_pipeline", "test_tmem"
WRITER, ADDED, BOUNDS, SPLIT = (
    f"epilogue/test_tile_writer{more}" for more in ("", "_auxiliary", "_bounds", "_split_k")
)  # fmt: skip
FUNCTIONS, SCHEDULERS, CONFIG = "epilogue/test_tile_writer_epilogue", "schedulers/test_schedulers", "config/test_sm100"


def all_by(test: str, *names: str) -> dict[str, str]:
    """Members that one test exercises."""
    return dict.fromkeys(names, test)


@dataclass(frozen=True)
class Row:
    """One member: its name on the page, its kind there, its path from `warploom.structured`, and its test."""

    name: str
    kind: str
    path: str
    module: str
    test: str
    says: str
    """The word by which the test mentions it."""


@dataclass(frozen=True)
class Class:
    """A class of a page, or one that a page refers to: the module that defines it, and its members by kind."""

    name: str
    module: str
    test: str
    fields: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, str] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> Iterator[Row]:
        yield Row(self.name, "class", self.name, self.module, self.test, self.name)
        kinds = {"parameter": self.parameters, "field": self.fields, "member": self.members, "method": self.methods}
        for kind, rows in kinds.items():
            for name, test in rows.items():
                says = self.name if name in ("__init__", "__enter__", "__exit__") else name
                yield Row(name, kind, f"{self.name}.{name}", self.module, test, says)


_SAME = f"{CONTEXT}::test_entering_returns_the_context_itself"
_THREADS = f"{CONTEXT}::test_thread_counts_that_are_given_are_checked"
_KNOWN = f"{CONTEXT}::test_tmem_that_the_role_already_knows"
_GIVEN = f"{CONTEXT}::test_parts_that_are_given_must_be_those_of_the_pipeline"
_ENDS = f"{CONTEXT}::test_tmem_is_allocated_once_and_freed_when_both_ctas_have_read_it"
_PRODUCES = f"{EXAMPLES}::test_epi_load_produce_and_consume"
_LINEAR = f"{EXAMPLES}::test_the_linear_example_of_both_sides"
_PROMOTES = f"{EXAMPLES}::test_per_k_stages_promote_every_k_tile"
_FORMS = f"{OUTPUT}::test_every_way_to_hold_an_accumulator_is_the_same"
_MEMBERS = f"{OUTPUT}::test_members_of_pipelines_and_stages"
_BOTH_SIDES = f"{EPI_LOAD}::test_every_form_of_both_sides"
_DERIVED = f"{WRITER}::test_members"
_KEYWORDS = f"{WRITER}::test_a_writer_from_keywords_alone"
_AGAIN = f"{WRITER}::test_derived_keywords_may_be_given_and_are_checked"
_ADDED = f"{ADDED}::test_loaded_inputs_are_added"
_LAMBDAS = f"{FUNCTIONS}::test_lambdas_under_the_names_of_the_page"
_ROWS = f"{PIPELINE}::test_rows_arrive_in_order_in_every_form"
_PARITIES = f"{PIPELINE}::test_the_producer_waits_with_the_parities_of_the_reference"
_BY_HAND = f"{OUTPUT}::test_user_barriers_that_one_thread_initialises"
_PER_K = f"{OUTPUT}::test_a_stage_per_k_step_releases_the_accumulator_and_its_input"
_FREED = f"{CONTEXT}::test_the_deallocation_barrier_step_by_step"
_TWINS = f"{CONTEXT}::test_linear_handles_match_the_contexts"
_LOADED = f"{INPUT}::test_every_way_to_hold_a_loaded_stage"
_FILLED = f"{INPUT}::test_every_way_to_fill_a_stage"
_PAYLOADS = f"{INPUT}::test_parts_of_payloads"
_FRAGMENTS = f"{MEMORY}::test_fragments_round_trip_through_tmem"
_STRIDES = f"{MEMORY}::test_stages_are_a_stride_apart"
_ALLOCATES = f"{MEMORY}::test_an_allocation_from_first_to_last"
_ORDER = f"{PIPELINE}::test_two_early_arrivals_do_not_look_like_none"
_SHARES = f"{SCHEDULERS}::test_split_tiles_carry_their_share"


def _context(name: str) -> Class:
    """The two contexts' pages list the same."""
    return Class(
        name,
        "pages.warp_contexts",
        _SAME,
        parameters=all_by(_THREADS, "mma_threads", "epilogue_threads"),
        fields=all_by(_SAME, "tmem", "output_pipeline", "dealloc_barrier"),
        members=all_by(f"{CONTEXT}::test_members", "Dealloc", "Pipeline", "Sync", "Tmem"),
        methods={
            "__init__": _KNOWN,
            "create": _GIVEN,
            "__enter__": _SAME,
            "__exit__": _ENDS,
            "per_k_stage": _PROMOTES,
        },
    )


PAGES = (
    _context("EpilogueWarpContext"),
    _context("MmaWarpContext"),
    Class(
        "EpiLoadPipeline",
        "pipelines.epilogue_load_pipeline",
        _BOTH_SIDES,
        parameters={"num_stages": _BOTH_SIDES},
        fields={"pipeline": _BOTH_SIDES},
        methods={
            "__init__": _BOTH_SIDES,
            "init_barriers": _BOTH_SIDES,
            "produce": _PRODUCES,
            **all_by(_BOTH_SIDES, "acquire_producer", "wait_consumer", "producer_mbar", "producer_step"),
            "consume": _PRODUCES,
            **all_by(_BOTH_SIDES, "consume_explicit", "acquire_consumer", "wait_producer"),
            **all_by(_BOTH_SIDES, "consumer_stage", "consumer_step"),
        },
    ),
    Class(
        "OutputTilePipeline",
        "pages.output_pipeline",
        _FORMS,
        fields={**all_by(_MEMBERS, "pipeline", "tmem"), "mma_complete_mask": f"{OUTPUT}::test_the_mask_names_the_pair"},
        members={
            "BarrierArray": _BY_HAND,
            **all_by(_MEMBERS, "cta_group", "num_stages", "Pipeline", "Stage", "stage_stride_cols", "Tmem"),
        },
        methods={
            "__init__": f"{OUTPUT}::test_the_mask_names_the_pair",
            "init_barriers": _BY_HAND,
            **all_by(_FORMS, "acquire_for_mma", "release_from_mma", "acquire_for_epilogue", "release_from_epilogue"),
            **all_by(_FORMS, "producer", "consumer"),
            "acquire_mma_linear": _LINEAR,
            "acquire_epilogue_linear": _LINEAR,
            "get_pipeline": _MEMBERS,
            "per_k": _FORMS,
            "per_k_epilogue": _PROMOTES,
        },
    ),
    Class(
        "TileWriter",
        "pages.tile_writer",
        f"{WRITER}::test_tma_stores_every_element_at_its_position",
        parameters={
            **all_by(_KEYWORDS, "a_type", "accum_type", "block_tile_shape", "mma_shape", "opc", "c_swizzle"),
            **all_by(_KEYWORDS, "transpose_c", "c_type", "c_smem_dim0", "c_smem_dim1", "num_output_stages"),
            **all_by(_KEYWORDS, "register_based_epilogue", "batched", "problem_n"),
            **all_by(_AGAIN, "num_output_warps", "c_rank", "c_tile_shape", "c_desc_shape"),
            **all_by(_LAMBDAS, "elementwise_lambda_fn", "elementwise_compute_lambda_fn"),
        },
        fields={"c_tma_op": _KEYWORDS},
        members=all_by(
            _DERIVED,
            *("accum_tile_layout", "AccumTmemArray", "bits", "BM", "BN", "c_smem_layout", "cta_group", "CTileArray"),
            *("data_paths", "epc", "epilogue_dtype", "fragment_size", "is_lower_frag_required", "MMA_M", "MMA_N"),
            *("N_dim", "num_accum_pipeline_stages", "num_stages", "rep", "rep_frag_size", "Stage"),
            *("stage_contiguous_size", "stage_stride_cols", "stageN", "TmaOp", "TmaOpPtr"),
        ),
        methods={
            "__init__": _KEYWORDS,
            "get_epilogue_dtype": _DERIVED,
            "write": f"{WRITER}::test_tma_stores_every_element_at_its_position",
            "write_batched": f"{WRITER}::test_one_of_several_matrices_scaled",
            "write_splitk": f"{SPLIT}::test_splits_are_reduced_in_every_layout",
            "write_absolute_with_bounds_check": f"{BOUNDS}::test_rows_of_other_tiles_are_not_written",
            **all_by(_ADDED, "write_with_residual", "write_batched_with_tma_epilogue_load"),
            **all_by(_ADDED, "write_batched_with_1d_bias", "write_batched_with_tma_epilogue_load_strips"),
        },
    ),
)
"""The pages, in their order."""

REFERRED = (
    Class(
        "ProducerConsumerPipeline",
        "pipelines.pipeline",
        _ROWS,
        parameters={"num_stages": _BOTH_SIDES},
        methods={
            "init_mbars": _BY_HAND,
            "smem_bytes": _PARITIES,
            **all_by(_ROWS, "produce", "consume", "consume_explicit", "acquire_producer", "acquire_consumer"),
            **all_by(_ROWS, "wait_producer", "wait_consumer", "try_wait_producer", "try_wait_consumer"),
            **all_by(_ROWS, "wait_producer_if_needed", "wait_consumer_if_needed", "producer_stage", "consumer_stage"),
            **all_by(_ROWS, "producer_step", "consumer_step", "producer_mbar", "consumer_mbar"),
            **all_by(_PARITIES, "producer_signal_and_step", "consumer_signal_and_step", "drain_producer"),
        },
    ),
    Class(
        "ProducerStage",
        "pipelines.stages",
        _BOTH_SIDES,
        methods={**all_by(_BOTH_SIDES, "index", "mbar", "release"), "expect_bytes": _PRODUCES},
    ),
    Class(
        "ConsumerStage",
        "pipelines.stages",
        _BOTH_SIDES,
        methods={
            **all_by(_BOTH_SIDES, "index", "arrive", "release", "release_without_signal"),
            "mbar": _ROWS,
        },
    ),
    *(
        Class(name, "pipelines.stages", _BOTH_SIDES)
        for name in ("ProduceContext", "ConsumeContext", "ExplicitConsumeContext")
    ),
    Class(
        "InputTilePipeline",
        "pipelines.input_pipeline",
        _FILLED,
        parameters=all_by(f"{INPUT}::test_one_barrier_guards_a_group_of_k_tiles", "num_group_stages", "k_group_size"),
        fields={"pipeline": _PER_K, "payload": _FILLED},
        methods={
            "init_barriers": f"{INPUT}::test_counts_that_do_not_match_the_roles",
            **all_by(_FILLED, "producer", "produce", "acquire_producer"),
            **all_by(_LOADED, "consumer", "consume", "acquire_consumer"),
            "drain_producer": f"{INPUT}::test_a_role_that_has_produced_stays_until_every_stage_is_free",
        },
    ),
    Class(
        "InputProducer",
        "pipelines.input_pipeline",
        _FILLED,
        methods={
            **all_by(_FILLED, "acquire", "acquire_stage", "try_acquire", "acquire_if_needed"),
            "drain": f"{INPUT}::test_a_role_that_has_produced_stays_until_every_stage_is_free",
        },
    ),
    Class(
        "InputConsumer",
        "pipelines.input_pipeline",
        _LOADED,
        methods=all_by(_LOADED, "acquire", "acquire_stage", "try_acquire", "acquire_if_needed"),
    ),
    Class(
        "InputProducerStage",
        "pipelines.input_pipeline",
        _FILLED,
        methods=all_by(_FILLED, "payload", "stage", "expect_bytes", "barrier", "load"),
    ),
    Class("InputConsumerStage", "pipelines.input_pipeline", _LOADED, methods=all_by(_LOADED, "payload", "stage")),
    Class(
        "TilePayload",
        "pipelines.input_pipeline",
        _PAYLOADS,
        methods={"get_tile": f"{INPUT}::test_the_address_of_a_tile_of_a_stage"},
    ),
    *(
        Class(name, "pipelines.input_pipeline", _PAYLOADS)
        for name in ("StandardTilePayload", "BlockScaledTilePayload", "BlockwiseFP8TilePayload")
    ),
    Class(
        "SMemArray",
        "pipelines.shared_types",
        f"{EPI_LOAD}::test_words_in_shared_memory",
        methods=all_by(f"{EPI_LOAD}::test_words_in_shared_memory", "make", "size", "ptr"),
    ),
    Class("SharedMemBarrier", "pipelines.shared_types", _BOTH_SIDES),
    Class("SMemTileArray2DRowMajor", "pipelines.shared_types", _BOTH_SIDES, methods={"make": _BOTH_SIDES}),
    Class("TMATensorTile", "pipelines.shared_types", _BOTH_SIDES),
    Class(
        "OutputPipelineConfig",
        "config.output",
        _MEMBERS,
        fields=all_by(_STRIDES, "num_stages", "stage_stride_cols", "cta_group"),
    ),
    Class(
        "OutputStage",
        "pipelines.output_pipeline",
        _MEMBERS,
        fields=all_by(_MEMBERS, "tmem", "pipeline"),
        methods=all_by(_MEMBERS, "index", "tmem_offset"),
    ),
    *(
        Class(name, "pipelines.output_pipeline", _FORMS)
        for name in ("OutputProducer", "OutputConsumer", "OutputKPipeline", "MmaKStage")
    ),
    Class(
        "MmaStage",
        "pipelines.output_pipeline",
        _FORMS,
        methods={
            **all_by(_FORMS, "tmem_offset", "release"),
            "mbar": _LINEAR,
        },
    ),
    Class("EpilogueStage", "pipelines.output_pipeline", _FORMS, methods=all_by(_FORMS, "tmem", "release")),
    Class("EpilogueKContext", "pipelines.output_pipeline", _PER_K),
    Class(
        "EpilogueKStage",
        "pipelines.output_pipeline",
        _PER_K,
        fields=all_by(_PER_K, "output_stage", "input_stage_index"),
        methods={"arrive_input": _PER_K},
    ),
    Class(
        "PromotedAccumulator",
        "tensor_cores.blockwise",
        _PROMOTES,
        methods=all_by(_PROMOTES, "clear", "column_scales", "promote"),
    ),
    Class(
        "MmaWarp",
        "pages.warp_contexts",
        _TWINS,
        methods=all_by(_TWINS, "create", "acquire_k_stage_linear", "release"),
    ),
    Class(
        "EpilogueWarp",
        "pages.warp_contexts",
        _TWINS,
        methods=all_by(_TWINS, "create", "acquire_k_stage_linear", "release"),
    ),
    Class(
        "TmemAllocation",
        "tensor_cores.tmem",
        _ALLOCATES,
        fields={"addr": _ALLOCATES},
        methods={**all_by(_ALLOCATES, "allocate", "release_lock", "deallocate"), "from_shared": _FRAGMENTS},
    ),
    Class(
        "TmemDeallocBarrier",
        "tensor_cores.tmem_dealloc",
        f"{CONTEXT}::test_members",
        methods=all_by(_FREED, "signal_peer", "signal_self", "signal_complete", "wait", "complete_dealloc"),
    ),
    Class(
        "TmemAddress",
        "tensor_cores.tmem",
        _FRAGMENTS,
        methods={**all_by(_STRIDES, "upper_addr", "lower_addr"), **all_by(_FRAGMENTS, "wait_load", "wait_store")},
    ),
    Class(
        "TmemTensor",
        "tensor_cores.tmem",
        _STRIDES,
        fields={
            "col_addr": _STRIDES,
            "frag_size": f"{MEMORY}::test_is_lower_required",
        },
        methods={
            "is_lower_required": f"{MEMORY}::test_is_lower_required",
            **all_by(_FRAGMENTS, "load_fragments", "store_fragments"),
        },
    ),
    Class(
        "TmemFragments",
        "tensor_cores.tmem",
        _FRAGMENTS,
        fields=all_by(_FRAGMENTS, "upper", "lower"),
        methods={"cast": _FRAGMENTS},
    ),
    Class("TmemArrayType", "tensor_cores.tmem", _FRAGMENTS),
    Class(
        "TmemStage", "tensor_cores.tmem", _STRIDES, methods=all_by(_STRIDES, "offset", "from_offset", "base", "index")
    ),
    Class(
        "WarpGroupBarrier",
        "named_barriers",
        f"{CONTEXT}::test_named_barriers_have_unique_numbers",
        methods=all_by(f"{CONTEXT}::test_named_barriers_have_unique_numbers", "arrive", "wait", "sync"),
    ),
    Class(
        "LoadOrderBarrier",
        "pipelines.epilogue_load_pipeline",
        _ORDER,
        methods=all_by(_ORDER, "arrive_and_step", "wait_and_step"),
    ),
    Class(
        "EpilogueConfig",
        "config.output",
        f"{CONFIG}::test_epilogue_config_fields",
        methods={"create": f"{CONFIG}::test_epilogue_config_fields"},
    ),
    Class(
        "TileScheduler", "schedulers.tile_scheduler", f"{SCHEDULERS}::test_a_configuration_gets_the_tiles_of_its_grid"
    ),
    Class(
        "WorkInfo",
        "schedulers.base",
        _PROMOTES,
        fields=all_by(_SHARES, "m", "n", "batch", "k_start", "k_tiles", "split", "is_first", "is_final", "number"),
    ),
)
"""Classes that the pages refer to."""

USAGE = {
    "EpiLoadPipeline.produce: wait, load onto `stage.mbar()`, advance": _PRODUCES,
    "EpiLoadPipeline.consume: wait, read the tile of `stage.index()`, signal": (_PRODUCES),
    "OutputTilePipeline.acquire_mma_linear: multiply, commit on `stage.mbar()`, release": (_LINEAR),
    "OutputTilePipeline.acquire_epilogue_linear: read TMEM, release": (_LINEAR),
    "OutputTilePipeline.per_k_epilogue: promote in the epilogue, both rings signalled": _PROMOTES,
    "MmaWarpContext.per_k_stage: multiply into `mma_stage.tmem.offset`, committed on leaving": _PROMOTES,
    "EpilogueWarpContext.per_k_stage: promote, both rings signalled": _PROMOTES,
    "EpilogueWarpContext: `Sync.wait()` before it is constructed": (
        f"{EXAMPLES}::test_a_wait_before_constructing_and_the_wait_of_entering_are_one"
    ),
}
"""The pages' usage examples."""
