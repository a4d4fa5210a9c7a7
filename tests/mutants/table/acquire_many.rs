//! Broken variants of `acquire_many`.

use super::Edit::In;
use super::{Mutant, mutant};

#[rustfmt::skip]
pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "acquire_many locks no row", "I2, I3",
        &[In("acquire_many", "for update of n skip locked", "")],
        "fence::grant_in_a_batch_waits_for_the_fenced_transaction_alone::in_read_committed",
    ),
    mutant(
        "acquire_many locks by no key update", "I3",
        &[In("acquire_many", "for update of n skip locked", "for no key update of l skip locked")],
        "fence::grant_in_a_batch_waits_for_the_fenced_transaction_alone::in_read_committed",
    ),
    mutant(
        "acquire_many waits for a locked row", "I14",
        &[In("acquire_many", "for update of n skip locked", "for update of n")],
        "outcomes::row_locked_by_a_stranger_is_never_waited_for",
    ),
    mutant(
        "acquire_many grants what is held", "I2",
        &[In("acquire_many", "and (n.owner is null or n.expires_at <= clock_timestamp()) ", "")],
        "outcomes::set_answers_each_request_for_itself",
    ),
    mutant(
        "acquire_many counts the term from the start of the transaction", "I11",
        &[In("acquire_many", "clock_timestamp() as locked_at", "now() as locked_at")],
        "transactions::terms_are_counted_from_the_call_and_not_from_the_beginning_of_the_transaction",
    ),
    mutant(
        "acquire_many leaves the time of acquisition as it was", "hold_at_least",
        &[In("acquire_many", "acquired_at = w.locked_at,", "")],
        "outcomes::name_that_was_held_before_is_held_on_from_its_latest_acquisition",
    ),
    mutant(
        "acquire_many does not force its commit", "I7",
        &[In("acquire_many", "perform set_config('synchronous_commit', 'on', true);", "null;")],
        "durability::no_function_weakens_synchronous_commit_and_grants_strengthen_it",
    ),
    mutant(
        "acquire_many does not compare the timeline", "I1 after a promotion",
        &[In("acquire_many", "is_foreign := timeline <> left(pg_walfile_name(pg_current_wal_lsn()), 8);", "null;")],
        "epoch::jumps::next_token_after_another_timeline_is_above_the_sequence_every_row_and_the_clock",
    ),
    mutant(
        "acquire_many does not compare with the rows' tokens", "I1 after a restore",
        &[In("acquire_many", "greatest(max(u.former), floor - 1), min(u.fence) <= greatest(max(u.former), floor - 1)", "floor - 1, min(u.fence) <= floor - 1")],
        "epoch::jumps::token_that_is_behind_a_row_or_the_epoch_is_never_given_out",
    ),
    mutant(
        "acquire_many does not compare with the floor of the epoch", "I1 after a restore",
        &[
            In("acquire_many", "or coalesce(pg_sequence_last_value('leasehold.locks_fence_seq'), 0) < floor - 1", ""),
            In("acquire_many", "greatest(max(u.former), floor - 1), min(u.fence) <= greatest(max(u.former), floor - 1)", "max(u.former), min(u.fence) <= max(u.former)"),
        ],
        "epoch::jumps::token_that_is_behind_a_row_or_the_epoch_is_never_given_out",
    ),
    mutant(
        "acquire_many trusts a token that its session kept", "I1 with a cache",
        &[In("acquire_many", "exit when not is_behind;", "exit;")],
        "epoch::jumps::sessions_that_keep_tokens_of_their_own_give_none_below_one_given_out",
    ),
    mutant(
        "acquire_many does without an epoch", "I1 after a copy",
        &[In("acquire_many", "is_foreign := floor is null or coalesce", "is_foreign := floor is not null and coalesce")],
        "epoch::lost_rows::acquire_without_an_epoch_jumps_makes_one_and_grants",
    ),
    mutant(
        "acquire_many ignores the queue", "first come, first served",
        &[In("acquire_many", "from leasehold.live_waiters as w where w.name = r.name", "from leasehold.live_waiters as w where false and w.name = r.name")],
        "queue_sql::order::one_and_set_answer_the_same_in_every_state_of_the_name_and_its_queue",
    ),
    mutant(
        "acquire_many lets the dead wait ahead", "I14",
        &[In("acquire_many", "from leasehold.live_waiters as w where w.name = r.name", "from leasehold.waiters as w where w.name = r.name")],
        "queue_sql::order::waiters_whose_client_is_dead_are_overtaken_and_counted_by_nobody",
    ),
    mutant(
        "acquire_many leaves its waiters in the line", "I14",
        &[In("acquire_many", "delete from leasehold.waiters as w where w.owner = any (winners);", "")],
        "queue_sql::order::one_and_set_answer_the_same_in_every_state_of_the_name_and_its_queue",
    ),
    mutant(
        "acquire_many does not ask whether the queue is changing", "I13",
        &[In("look_again", "and leasehold.is_changing(p.name)", "and false")],
        "queue_sql::interleavings::look_beside_an_uncommitted_release_that_has_not_seen_the_waiter_is_busy_and_tells_who_holds_it",
    ),
    mutant(
        "acquire_many asks for changes as the first in line alone", "I13",
        &[In("look_again", "and p.ahead <= 1", "and p.ahead = 0")],
        "queue_sql::leaving::look_beside_the_uncommitted_leave_of_the_one_ahead_is_busy",
    ),
    mutant(
        "acquire_many puts its requests in line from the last to the first", "first come, first served",
        &[In("look_again", "order by r.place ) as s;", "order by r.place desc ) as s;")],
        "queue_sql::order::set_puts_the_waiters_of_each_name_in_line_and_grants_what_is_free_of_a_line",
    ),
    mutant(
        "acquire_many grants the last of those that ask for one name", "first come, first served",
        &[In("acquire_many", "order by f.name, f.place ", "order by f.name, f.place desc ")],
        "outcomes::of_several_requests_for_one_name_in_a_set_the_first_is_granted",
    ),
    mutant(
        "acquire_many inserts names in the order of the call", "I18: deadlocks",
        &[
            In("acquire_many", "select distinct r.name collate \"C\" from", "select r.name from"),
            In("acquire_many", "where l.name is null order by 1", "where l.name is null"),
        ],
        "insertions::sets_that_insert_the_same_names_in_opposite_orders_do_not_deadlock",
    ),
    mutant(
        "acquire_many keeps the short lock_timeout", "settings of the caller",
        &[In("acquire_many", "perform set_config('lock_timeout', callers_wait, true);", "")],
        "insertions::wait_ends_with_the_callers_lock_timeout_which_the_call_gives_back",
    ),
    mutant(
        "acquire_many gives up every new name beside one that is blocked", "I14",
        &[In("acquire_many", "foreach missed in array missing loop", "foreach missed in array '{}'::text[] loop")],
        "row_locks::several_names_being_inserted_do_not_hold_up_the_rest_of_a_batch",
    ),
    mutant(
        "acquire_many fails on another session's insert", "I18",
        &[In("acquire_many", "when lock_not_available then perform set_config('lock_timeout', '1ms', true);", "when division_by_zero then perform set_config('lock_timeout', '1ms', true);")],
        "outcomes::set_blocked_by_an_uncommitted_insert_answers_busy_for_that_name_alone",
    ),
    mutant(
        "acquire_many answers with its own grant though it ran out", "I5",
        &[In("look_again", "when l.owner = r.owner and l.expires_at > clock_timestamp() then null", "when l.owner = r.owner then null")],
        "outcomes::own_grant_that_ran_out_under_a_locked_row_is_not_answered_as_granted",
    ),
    mutant(
        "acquire_many checks no argument", "I17",
        &[In("acquire_many", "where not leasehold.fits(r.name, r.owner, r.ttl, r.holder);", "where false;")],
        "outcomes_arguments::argument_out_of_range_is_refused_with_the_name_of_the_lock",
    ),
    mutant(
        "acquire_many checks no client ttl", "I17",
        &[In("acquire_many", "perform leasehold.check_client_ttl(acquire_many.client_ttl);", "null;")],
        "queue_sql::upkeep::client_arguments_out_of_range_are_refused_and_change_nothing",
    ),
    mutant(
        "acquire_many tells no pinned name from a busy one", "I18",
        &[In("look_again", "when leasehold.pinned(l.name) then 'pinned' ", "")],
        "fence::grant_in_a_batch_waits_for_the_fenced_transaction_alone::in_read_committed",
    ),
    mutant(
        "acquire_many grants for a shorter term than it answers", "I11",
        &[In("acquire_many", "expires_at = w.locked_at + w.term", "expires_at = w.locked_at + w.term / 8")],
        "transactions::terms_are_counted_from_the_call_and_not_from_the_beginning_of_the_transaction",
    ),
    mutant(
        "acquire_many runs with the rights of its caller", "rights",
        &[In("acquire_many", "SECURITY DEFINER ", "")],
        "roles::client_role_acquires_renews_fences_looks_and_releases",
    ),
    mutant(
        "acquire_many reads a name from its oldest version on", "cost",
        &[In("acquire_many", "select n.ctid as spot from leasehold.locks as n where n.name >= r.name and n.name <= r.name order by n.name desc limit 1", "select n.ctid as spot from leasehold.locks as n where n.name = r.name")],
        "storage::names_are_read_from_their_newest_version_on_while_a_snapshot_is_open",
    ),
    mutant(
        "acquire_many may scan the queue", "cost",
        &[In("acquire_many", "SET enable_seqscan TO 'off' ", "")],
        "queue_sql::plans::plans_made_while_nobody_waits_read_few_rows_when_tens_of_thousands_wait_for_other_names",
    ),
];
