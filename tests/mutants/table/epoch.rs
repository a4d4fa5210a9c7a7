//! Broken variants of the epoch: when the sequence jumps, how far, and what is told of it.

use super::Edit::{In, Run};
use super::{Mutant, mutant};

#[rustfmt::skip]
pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "jump is too small", "I1 after a promotion",
        &[In("jump", "1::bigint << 26", "1::bigint << 6")],
        "epoch::jumps::next_token_after_another_timeline_is_above_the_sequence_every_row_and_the_clock",
    ),
    mutant(
        "jump does not look at the rows", "I1 after a restore",
        &[In("jump", "coalesce((select max(l.fence) from leasehold.locks as l), 0)::numeric + stride,", "")],
        "epoch::jumps::next_token_after_another_timeline_is_above_the_sequence_every_row_and_the_clock",
    ),
    mutant(
        "jump does not look at the clock", "I1 after a restore",
        &[In("jump", ", floor(extract(epoch from clock_timestamp()) * 1000000)", "")],
        "epoch::jumps::next_token_after_another_timeline_is_above_the_sequence_every_row_and_the_clock",
    ),
    mutant(
        "jump does not look at the sequence", "I1 after a promotion",
        &[In("jump", "present::numeric + stride, ", "")],
        "epoch::jumps::next_token_after_another_timeline_is_above_the_sequence_every_row_and_the_clock",
    ),
    mutant(
        "jump does not look at what its caller saw", "I1 after a restore",
        &[In("jump", "coalesce(jump.above, 0)::numeric + stride, ", "")],
        "epoch::jumps::token_is_above_the_latest_jump_although_the_sequence_and_all_rows_are_below_it",
    ),
    mutant(
        "jump does not jump", "I1 after a promotion",
        &[In("jump", "perform setval('leasehold.locks_fence_seq', target::bigint, true);", "")],
        "epoch::jumps::next_token_after_another_timeline_is_above_the_sequence_every_row_and_the_clock",
    ),
    mutant(
        "jump does not remember where it jumped to", "I1 after a restore",
        &[In("jump", "floor = target::bigint where e.one", "floor = e.floor where e.one")],
        "epoch::jumps::token_is_above_the_latest_jump_although_the_sequence_and_all_rows_are_below_it",
    ),
    mutant(
        "jump does not remember the timeline", "cost",
        &[In("jump", "set timeline = leasehold.present_timeline(), system", "set system")],
        "epoch::races::of_many_sessions_that_come_to_another_history_one_jumps",
    ),
    mutant(
        "jump does not remember the system", "cost",
        &[In("jump", "system = leasehold.present_system(), floor", "floor")],
        "epoch::clients::first_connection_to_another_server_jumps_though_nothing_is_granted",
    ),
    mutant(
        "jump is not written down", "what the operator is told",
        &[In("jump", "select jump.reason, before.timeline, e.timeline, before.system, e.system, present, e.floor from leasehold.epoch as e;", "select jump.reason, before.timeline, e.timeline, before.system, e.system, present, e.floor from leasehold.epoch as e where false;")],
        "epoch::jumps::next_token_after_another_timeline_is_above_the_sequence_every_row_and_the_clock",
    ),
    mutant(
        "jump does not force its commit", "I1 after a crash",
        &[In("jump", "perform leasehold.make_durable();", "")],
        "epoch::jumps::jump_survives_a_crash_whatever_the_role_says_of_commits",
    ),
    mutant(
        "jump warns nobody", "what the operator is told",
        &[In("jump", "raise warning 'fencing tokens", "raise debug 'fencing tokens")],
        "epoch::jumps::session_that_jumps_is_warned",
    ),
    mutant(
        "jump goes past the end", "I17",
        &[In("jump", "if target >= 9223372036854775807 then", "if false then")],
        "epoch::top::jump_that_would_go_past_the_end_is_refused_and_leaves_all_as_it_was",
    ),
    mutant(
        "jump needs a row of the epoch", "I14 after a copy",
        &[In("jump", "insert into leasehold.epoch (floor) values (0) on conflict on constraint epoch_pkey do nothing;", "")],
        "epoch::lost_rows::acquire_without_an_epoch_jumps_makes_one_and_grants",
    ),
    mutant(
        "enter_epoch locks nothing", "cost",
        &[In("enter_epoch", "perform from leasehold.epoch as e where e.one for update;", "")],
        "epoch::races::of_many_sessions_that_come_to_another_history_one_jumps",
    ),
    mutant(
        "enter_epoch does not compare the timeline", "I1 after a promotion",
        &[In("enter_epoch", "when e.timeline is distinct from leasehold.present_timeline() then", "when false then")],
        "epoch::jumps::next_token_after_another_timeline_is_above_the_sequence_every_row_and_the_clock",
    ),
    mutant(
        "enter_epoch does not compare the system", "I1 after a copy",
        &[In("enter_epoch", "when e.system is distinct from leasehold.present_system() then", "when false then")],
        "epoch::clients::first_connection_to_another_server_jumps_though_nothing_is_granted",
    ),
    mutant(
        "enter_epoch does not see a sequence that was set back", "I1 after a restore",
        &[In("enter_epoch", "when s.last_value < e.floor then", "when false then")],
        "epoch::jumps::token_that_is_behind_a_row_or_the_epoch_is_never_given_out",
    ),
    mutant(
        "enter_epoch does not see a sequence behind a row", "I1 after a restore",
        &[In("enter_epoch", "when s.last_value < enter_epoch.above or (s.last_value = enter_epoch.above and not s.is_called) then", "when false then")],
        "epoch::jumps::token_that_is_behind_a_row_or_the_epoch_is_never_given_out",
    ),
    mutant(
        "enter_epoch does without a row", "I1 after a copy",
        &[In("enter_epoch", "when e.floor is null then", "when false then")],
        "epoch::lost_rows::acquire_without_an_epoch_jumps_makes_one_and_grants",
    ),
    mutant(
        "enter_epoch finds nothing", "I1 after a promotion",
        &[In("enter_epoch", "perform leasehold.jump(reason, enter_epoch.above); return true;", "return true;")],
        "epoch::jumps::next_token_after_another_timeline_is_above_the_sequence_every_row_and_the_clock",
    ),
    mutant(
        "advance_epoch does not jump", "I1 after a rolled-back volume",
        &[In("advance_epoch", "return leasehold.jump('an operator asked for it', null);", "return (select e.floor from leasehold.epoch as e);")],
        "epoch::operator::advanced_epoch_jumps_each_time_and_tells_what_the_next_token_is_above_of",
    ),
    mutant(
        "advance_epoch jumps where it finds a reason alone", "I1 after a rolled-back volume",
        &[In("advance_epoch", "return leasehold.jump('an operator asked for it', null);", "perform leasehold.enter_epoch(null); return (select e.floor from leasehold.epoch as e);")],
        "epoch::operator::advanced_epoch_jumps_each_time_and_tells_what_the_next_token_is_above_of",
    ),
    mutant(
        "advance_epoch is anybody's", "rights",
        &[Run("grant execute on function leasehold.advance_epoch() to public")],
        "epoch::operator::only_the_role_of_operators_advances_the_epoch_and_reads_its_history",
    ),
    mutant(
        "present_timeline fails where it may not be asked", "I14",
        &[In("present_timeline", "when undefined_function or insufficient_privilege or feature_not_supported then", "when division_by_zero then")],
        "epoch::untold::server_that_does_not_let_its_functions_be_called_grants_and_says_so",
    ),
    mutant(
        "present_system fails where it may not be asked", "I14",
        &[In("present_system", "when undefined_function or insufficient_privilege or feature_not_supported then", "when division_by_zero then")],
        "epoch::untold::server_that_does_not_let_its_functions_be_called_grants_and_says_so",
    ),
    mutant(
        "check does not see a cache", "I1 with a cache",
        &[In("check", "q.seqcache <> 1,", "false,")],
        "epoch::findings::each_fault_is_found_alone_and_mended_by_its_remedy",
    ),
    mutant(
        "check does not see a cycle", "I9",
        &[In("check", "q.seqcycle,", "false,")],
        "epoch::findings::each_fault_is_found_alone_and_mended_by_its_remedy",
    ),
    mutant(
        "check does not see a sequence that was set back", "I1 after a restore",
        &[In("check", "s.last_value < e.floor,", "false,")],
        "epoch::findings::each_fault_is_found_alone_and_mended_by_its_remedy",
    ),
    mutant(
        "check does not see another timeline", "I1 after a promotion",
        &[In("check", "and e.timeline is distinct from leasehold.present_timeline(),", "and false,")],
        "epoch::findings::each_fault_is_found_alone_and_mended_by_its_remedy",
    ),
    mutant(
        "check fails on a standby", "I18",
        &[In("check", "and not pg_is_in_recovery() ", "")],
        "epoch::findings::check_works_on_a_hot_standby",
    ),
    mutant(
        "the sequence keeps tokens for its sessions", "I1",
        &[Run("alter sequence leasehold.locks_fence_seq cache 20")],
        "epoch::findings::each_fault_is_found_alone_and_mended_by_its_remedy",
    ),
];
