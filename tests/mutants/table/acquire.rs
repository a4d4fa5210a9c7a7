//! Broken variants of `acquire`.

use super::Edit::In;
use super::{Mutant, mutant};

#[rustfmt::skip]
pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "acquire locks no row", "I2, I3",
        &[In("acquire", "for update of l skip locked", "")],
        "fence::grant_of_a_run_out_name_waits_for_the_fenced_transaction::in_read_committed",
    ),
    mutant(
        "acquire locks by no key update", "I3",
        &[In("acquire", "for update of l skip locked", "for no key update of l skip locked")],
        "fence::grant_of_a_run_out_name_waits_for_the_fenced_transaction::in_read_committed",
    ),
    mutant(
        "acquire waits for a locked row", "I14",
        &[In("acquire", "for update of l skip locked", "for update of l")],
        "outcomes::row_locked_by_a_stranger_is_never_waited_for",
    ),
    mutant(
        "acquire grants what is held", "I2",
        &[
            In("acquire", "exit when present.owner is not null and present.expires_at > clock_timestamp();", ""),
            In("acquire", "and (l.owner is null or l.expires_at <= clock_timestamp()) ", ""),
        ],
        "outcomes::free_name_is_granted_and_a_held_one_tells_who_holds_it",
    ),
    mutant(
        "acquire grants what will run out within its term", "I2",
        &[
            In("acquire", "exit when present.owner is not null and present.expires_at > clock_timestamp();", "exit when present.owner is not null and present.expires_at > clock_timestamp() + term;"),
            In("acquire", "l.expires_at <= clock_timestamp())", "l.expires_at <= clock_timestamp() + term)"),
        ],
        "outcomes::free_name_is_granted_and_a_held_one_tells_who_holds_it",
    ),
    mutant(
        "acquire grants only what was released", "I14",
        &[In("acquire", "exit when present.owner is not null and present.expires_at > clock_timestamp();", "exit when present.owner is not null;")],
        "outcomes::own_grant_that_ran_out_is_granted_anew_with_a_higher_token",
    ),
    mutant(
        "acquire counts the term from the start of the transaction", "I11",
        &[In("acquire", "locked_at := clock_timestamp(); acquire.fencing_token", "locked_at := now(); acquire.fencing_token")],
        "transactions::terms_are_counted_from_the_call_and_not_from_the_beginning_of_the_transaction",
    ),
    mutant(
        "acquire grants for a shorter term than it answers", "I11",
        &[In("acquire", "expires_at = locked_at + term", "expires_at = locked_at + term / 8")],
        "transactions::terms_are_counted_from_the_call_and_not_from_the_beginning_of_the_transaction",
    ),
    mutant(
        "acquire leaves the time of acquisition as it was", "hold_at_least",
        &[In("acquire", "acquired_at = locked_at,", "")],
        "outcomes::name_that_was_held_before_is_held_on_from_its_latest_acquisition",
    ),
    mutant(
        "acquire leaves the holder as it was", "who holds it",
        &[In("acquire", "holder = acquire.holder,", "")],
        "outcomes::free_name_is_granted_and_a_held_one_tells_who_holds_it",
    ),
    mutant(
        "acquire stores no ttl", "I12",
        &[In("acquire", "ttl = term,", "ttl = null,")],
        "fence::fenced_writes_share_one_grant::in_read_committed",
    ),
    mutant(
        "acquire does not force its commit", "I7",
        &[In("acquire", "perform set_config('synchronous_commit', 'on', true);", "null;")],
        "durability::no_function_weakens_synchronous_commit_and_grants_strengthen_it",
    ),
    mutant(
        "acquire weakens a remote_apply", "I7",
        &[In("acquire", "current_setting('synchronous_commit') in ('off', 'local', 'remote_write')", "current_setting('synchronous_commit') <> 'on'")],
        "durability::no_function_weakens_synchronous_commit_and_grants_strengthen_it",
    ),
    mutant(
        "acquire leaves remote_write as it is", "I7",
        &[In("acquire", "in ('off', 'local', 'remote_write')", "in ('off', 'local')")],
        "durability::no_function_weakens_synchronous_commit_and_grants_strengthen_it",
    ),
    mutant(
        "acquire draws the token before the row is locked", "I1",
        &[
            In("acquire", "for attempt in 1..2 loop", "acquire.fencing_token := nextval('leasehold.locks_fence_seq'); for attempt in 1..2 loop"),
            In("acquire", "locked_at := clock_timestamp(); acquire.fencing_token := nextval('leasehold.locks_fence_seq');", "locked_at := clock_timestamp();"),
            In("acquire", "is_foreign or acquire.fencing_token <= highest", "is_foreign"),
        ],
        "insertions::token_is_drawn_after_the_wait_for_another_sessions_insert",
    ),
    mutant(
        "acquire takes the row's token plus one", "I9",
        &[In("acquire", "locked_at := clock_timestamp(); acquire.fencing_token := nextval('leasehold.locks_fence_seq');", "locked_at := clock_timestamp(); acquire.fencing_token := greatest(highest, 0) + 1;")],
        "epoch::price::uncontended_acquire_draws_one_token_and_flushes_once",
    ),
    mutant(
        "acquire keeps the token of the grant before", "I1, I9",
        &[In("acquire", "fence = acquire.fencing_token,", "fence = greatest(l.fence, 1),")],
        "fence::fenced_writes_share_one_grant::in_read_committed",
    ),
    mutant(
        "acquire does not compare the timeline", "I1 after a promotion",
        &[In("acquire", "is_foreign := timeline <> left(pg_walfile_name(pg_current_wal_lsn()), 8);", "null;")],
        "epoch::jumps::next_token_after_another_timeline_is_above_the_sequence_every_row_and_the_clock",
    ),
    mutant(
        "acquire does not compare with the row's token", "I1 after a restore",
        &[In("acquire", "greatest(l.fence, e.floor - 1)", "e.floor - 1")],
        "epoch::jumps::token_that_is_behind_a_row_or_the_epoch_is_never_given_out",
    ),
    mutant(
        "acquire does not compare with the floor of the epoch", "I1 after a restore",
        &[In("acquire", "greatest(l.fence, e.floor - 1)", "l.fence")],
        "epoch::jumps::token_that_is_behind_a_row_or_the_epoch_is_never_given_out",
    ),
    mutant(
        "acquire takes a token equal to the row's", "I9 after a restore",
        &[In("acquire", "if is_foreign or acquire.fencing_token <= highest then", "if is_foreign or acquire.fencing_token < highest then")],
        "epoch::jumps::token_that_is_behind_a_row_or_the_epoch_is_never_given_out",
    ),
    mutant(
        "acquire trusts a token that its session kept", "I1 with a cache",
        &[In("acquire", "perform leasehold.jump('a session kept tokens that are behind one in use', highest); acquire.fencing_token := nextval('leasehold.locks_fence_seq');", "null;")],
        "epoch::jumps::sessions_that_keep_tokens_of_their_own_give_none_below_one_given_out",
    ),
    mutant(
        "acquire does without an epoch", "I1 after a copy",
        &[In("acquire", "select e.floor is null,", "select false,")],
        "epoch::lost_rows::acquire_without_an_epoch_jumps_makes_one_and_grants",
    ),
    mutant(
        "acquire ignores the queue", "first come, first served",
        &[In("acquire", "exit when present.has_queue and exists", "exit when false and exists")],
        "queue_sql::order::one_and_set_answer_the_same_in_every_state_of_the_name_and_its_queue",
    ),
    mutant(
        "acquire lets the dead wait ahead", "I14",
        &[In("acquire", "from leasehold.live_waiters as w where w.name = acquire.lock_name and w.owner <> acquire.owner", "from leasehold.waiters as w where w.name = acquire.lock_name and w.owner <> acquire.owner")],
        "queue_sql::order::waiters_whose_client_is_dead_are_overtaken_and_counted_by_nobody",
    ),
    mutant(
        "acquire locks the row before it knows the queue", "I14",
        &[In("acquire", "exit when present.has_queue and exists", "perform from leasehold.locks as l where l.ctid = present.spot for update skip locked; exit when present.has_queue and exists")],
        "queue_sql::interleavings::latecomer_that_is_refused_a_promised_name_keeps_nothing_of_it_locked",
    ),
    mutant(
        "acquire leaves its waiter in the line", "I14",
        &[In("acquire", "delete from leasehold.waiters as w where w.owner = acquire.owner;", "null;")],
        "queue_sql::order::one_and_set_answer_the_same_in_every_state_of_the_name_and_its_queue",
    ),
    mutant(
        "acquire does not ask whether the queue is changing", "I13",
        &[In("acquire", "is_changing := my_place <= 1 and leasehold.is_changing(acquire.lock_name);", "null;")],
        "queue_sql::interleavings::look_beside_an_uncommitted_release_that_has_not_seen_the_waiter_is_busy_and_tells_who_holds_it",
    ),
    mutant(
        "acquire asks for changes as the first in line alone", "I13",
        &[In("acquire", "is_changing := my_place <= 1 and", "is_changing := my_place = 0 and")],
        "queue_sql::leaving::look_beside_the_uncommitted_leave_of_the_one_ahead_is_busy",
    ),
    mutant(
        "acquire does not know its own grant again", "a repeated request is answered alike",
        &[In("acquire", "if present.owner = acquire.owner and present.expires_at > clock_timestamp() then", "if false then")],
        "outcomes::acquire_repeated_by_its_owner_answers_with_the_same_grant",
    ),
    mutant(
        "acquire answers with its own grant though it ran out", "I5",
        &[In("acquire", "if present.owner = acquire.owner and present.expires_at > clock_timestamp() then", "if present.owner = acquire.owner then")],
        "outcomes::own_grant_that_ran_out_under_a_locked_row_is_not_answered_as_granted",
    ),
    mutant(
        "acquire fails on another session's insert", "I18",
        &[In("acquire", "when lock_not_available then exit;", "when division_by_zero then exit;")],
        "insertions::wait_ends_with_the_callers_lock_timeout_which_the_call_gives_back",
    ),
    mutant(
        "acquire checks no argument", "I17",
        &[In("acquire", "if not leasehold.fits(acquire.lock_name, acquire.owner, acquire.ttl, acquire.holder) then", "if false then")],
        "outcomes_arguments::argument_out_of_range_is_refused_with_the_name_of_the_lock",
    ),
    mutant(
        "acquire checks no client ttl", "I17",
        &[In("acquire", "if acquire.client is not null then perform leasehold.check_client_ttl(acquire.client_ttl); end if;", "")],
        "queue_sql::upkeep::client_arguments_out_of_range_are_refused_and_change_nothing",
    ),
    mutant(
        "acquire tells no pinned name from a busy one", "I18",
        &[In("acquire", "elsif leasehold.pinned(acquire.lock_name) then", "elsif false then")],
        "fence::grant_of_a_run_out_name_waits_for_the_fenced_transaction::in_read_committed",
    ),
    mutant(
        "acquire does not tell who holds the name", "who holds it",
        &[In("acquire", "acquire.held_by := present.holder;", "")],
        "outcomes::free_name_is_granted_and_a_held_one_tells_who_holds_it",
    ),
    mutant(
        "acquire puts who does not wait in line", "first come, first served",
        &[In("acquire", "if acquire.client is not null and my_ticket is null then", "if my_ticket is null then")],
        "queue_sql::order::one_and_set_answer_the_same_in_every_state_of_the_name_and_its_queue",
    ),
    mutant(
        "acquire counts a day as 23 or 25 hours", "I11",
        &[In("acquire", "term := make_interval(secs => extract(epoch from acquire.ttl)::double precision);", "term := acquire.ttl;")],
        "outcomes_arguments::day_is_86_400_seconds_across_daylight_saving",
    ),
    mutant(
        "acquire runs with the rights of its caller", "rights",
        &[In("acquire", "SECURITY DEFINER ", "")],
        "roles::client_role_acquires_renews_fences_looks_and_releases",
    ),
    mutant(
        "acquire follows the caller's search_path", "rights",
        &[In("acquire", "SET search_path TO 'pg_catalog', 'pg_temp' ", "")],
        "migrate::again::every_function_has_a_comment_and_every_security_definer_a_pinned_path",
    ),
    mutant(
        "acquire reads a name from its oldest version on", "cost",
        &[In("acquire", "from leasehold.locks as l where l.name >= acquire.lock_name and l.name <= acquire.lock_name order by l.name desc limit 1; has_row := found; if not", "from leasehold.locks as l where l.name = acquire.lock_name; has_row := found; if not")],
        "storage::names_are_read_from_their_newest_version_on_while_a_snapshot_is_open",
    ),
    mutant(
        "acquire may scan the queue", "cost",
        &[In("acquire", "SET enable_seqscan TO 'off' ", "")],
        "queue_sql::plans::plans_made_while_nobody_waits_read_few_rows_when_tens_of_thousands_wait_for_other_names",
    ),
];
