"""What users of other KV pools and of other transfers suffer from, and the test of each here.

The table is the list; a test that it names must exist.
"""

import ast
from pathlib import Path

import pytest

TIERS, STORAGE, WORKER = "workers/tiers", "workers/storage/test_storage.py", "workers/test_worker"
STORIES = "orchestrator/virtual/stories"
TRANSFERS = f"{STORIES}/test_stories_transfers.py"

COMPLAINTS: dict[str, tuple[tuple[str, str], ...]] = {
    # ---------------------------------------------------------------- pools
    "a disk tier that hands out another request's KV": (
        (f"{TIERS}/test_store.py", "test_another_blocks_file_is_never_served"),
        (f"{TIERS}/test_store.py", "test_another_keys_bytes_are_not_taken"),
        (STORAGE, "test_a_damaged_block_ends_the_load_before_it"),
    ),
    "a layout change that corrupts in silence": (
        (f"{TIERS}/test_blocks.py", "test_another_layout_shares_no_key"),
        (f"{TIERS}/test_blocks.py", "test_another_model_shares_no_key"),
    ),
    "a cache salt that gets lost between tiers": (
        (STORAGE, "test_a_salt_is_kept_through_every_tier"),
    ),
    "an eviction thread that dies and freezes the cache": (
        (f"{TIERS}/test_store.py", "test_a_writer_that_fails_at_one_block_writes_the_next"),
        (
            f"{TIERS}/test_eviction.py",
            "test_a_ledger_stays_below_its_capacity_and_lets_go_in_strokes",
        ),
    ),
    "a leak that takes the hit rate to zero": (
        (f"{TIERS}/test_store.py", "test_accidents_without_end_do_not_wear_the_hit_rate_down"),
    ),
    "keys listed whose values are gone": (
        (f"{TIERS}/test_store.py", "test_a_key_whose_file_is_gone_is_a_miss_and_forgotten"),
        (f"{TIERS}/test_holdings.py", "test_a_stores_holdings_are_what_it_finds"),
        (STORAGE, "test_a_block_that_went_between_two_questions_ends_the_load_before_it"),
    ),
    "one duplicate key failing a batch": (
        (f"{TIERS}/test_store.py", "test_a_known_block_does_not_fail_a_batch"),
    ),
    "a full hit in tier 3 cut down to what tier 2 holds": (
        (STORAGE, "test_a_hit_in_files_is_not_cut_down_to_what_memory_holds"),
    ),
    "a disk hit slower than recomputing": (
        (f"{TIERS}/test_choice.py", "test_what_comes_faster_than_it_is_computed_is_loaded"),
        (STORAGE, "test_what_is_faster_computed_is_not_loaded"),
        (f"{WORKER}_stores.py", "test_nobody_waits_longer_than_computing_would_take"),
    ),
    "Python's hash() as a key": (
        (f"{TIERS}/test_blocks.py", "test_another_process_makes_the_same_keys"),
    ),
    # ---------------------------------------------------------------- between prefill and decode
    "blocks of an aborted remote load never given back": (
        (f"{WORKER}_stores.py", "test_a_leg_that_ends_while_it_waits_leaves_nothing"),
        (
            f"{WORKER}_kv.py",
            "test_stopping_the_target_drops_its_import_and_keeps_whole_blocks_as_cache",
        ),
    ),
    "prefill KV stranded when decode refuses": (
        (TRANSFERS, "test_prefilled_kv_is_not_stranded_when_decode_refuses"),
        (f"{WORKER}_leases.py", "test_a_hold_expires"),
    ),
    "prefill KV stranded when the client leaves": (
        (
            TRANSFERS,
            "test_prefilled_kv_is_not_stranded_when_the_client_leaves_before_it_is_fetched",
        ),
        (f"{STORIES}/test_stories.py", "test_client_gone_all_kv_is_free_within_a_second"),
    ),
    "a failed prefill that leaves decode waiting for minutes": (
        (TRANSFERS, "test_a_failed_prefill_does_not_leave_decode_waiting"),
    ),
    "unequal block sizes giving wrong output in silence": (
        (
            "workers/engines/torch/test_torch_import.py",
            "test_pieces_of_any_size_land_where_they_belong",
        ),
        (STORAGE, "test_workers_with_other_block_sizes_understand_one_another"),
    ),
    "unequal parallel sizes giving wrong output in silence": (
        (f"{WORKER}_kv.py", "test_an_offer_of_other_kv_is_refused_with_both_values"),
        (f"{WORKER}_kv.py", "test_an_offer_from_another_model_is_refused"),
    ),
    "a wrong id in a notification leaking KV": (
        (TRANSFERS, "test_a_wrong_id_in_a_notification_leaks_nothing"),
        (
            f"{WORKER}_kv.py",
            "test_a_wrong_name_in_a_notification_neither_keeps_nor_frees_anything",
        ),
        (f"{WORKER}_stores.py", "test_a_leg_that_nobody_knows_changes_nothing"),
    ),
    "health answering 200 while every transfer hangs": (
        (f"{STORIES}/test_stories_faults.py", "test_kv_path_stalled_the_relay_finishes"),
        ("configs/test_observability.py", "test_transfers_that_hang_are_told_whatever_health_says"),
    ),
    "blocks evicted before an asynchronous send": (
        (f"{WORKER}_kv.py", "test_what_is_still_to_be_sent_is_not_evicted"),
        (STORAGE, "test_what_the_engine_evicted_before_it_was_saved_is_counted_not_saved"),
    ),
    "a steady load that breaks a transfer engine after minutes": (
        (TRANSFERS, "test_a_steady_load_goes_on_as_it_began"),
    ),
}


@pytest.mark.parametrize("complaint", COMPLAINTS)
def test_each_complaint_has_its_tests(complaint: str, root: Path) -> None:
    assert COMPLAINTS[complaint]
    for file, name in COMPLAINTS[complaint]:
        tree = ast.parse((root / "tests" / file).read_text())
        there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in there, f"{file} has no {name}"
