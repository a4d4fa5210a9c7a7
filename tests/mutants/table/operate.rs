//! Broken variants of what an operator has: `break_lease` and the sweep; of the helpers that several
//! functions share; and of the tables.

use super::Edit::{In, Run};
use super::{Mutant, mutant};

#[rustfmt::skip]
pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "break_lease keeps the owner", "I3s",
        &[In("break_lease", "set owner = null, holder = null, ttl = null, expires_at", "set expires_at")],
        "fence::released_held_on_or_broken_lease_is_refused::in_read_committed",
    ),
    mutant(
        "break_lease leaves the end as it was", "nothing is left",
        &[In("break_lease", "ttl = null, expires_at = clock_timestamp()", "ttl = null")],
        "storage::row_of_a_free_name_tells_since_when_it_is_free",
    ),
    mutant(
        "break_lease says that it broke what is free", "what the operator is told",
        &[In("break_lease", "and l.owner is not null", "")],
        "outcomes::broken_lease_is_over_for_its_holder_and_free_for_all",
    ),
    mutant(
        "break_lease does not mark the queue", "I13",
        &[In("break_lease", "perform leasehold.mark_changing(break_lease.lock_name);", "")],
        "queue_sql::interleavings::look_beside_an_uncommitted_release_that_has_not_seen_the_waiter_is_busy_and_tells_who_holds_it",
    ),
    mutant(
        "break_lease wakes nobody", "I13",
        &[In("break_lease", "perform leasehold.wake(break_lease.lock_name);", "")],
        "queue_sql::wakes::whatever_frees_the_name_tells_the_first_live_waiter_and_nobody_else",
    ),
    mutant(
        "break_lease does not force its commit", "I7",
        &[In("break_lease", "perform leasehold.make_durable();", "")],
        "durability::no_function_weakens_synchronous_commit_and_grants_strengthen_it",
    ),
    mutant(
        "break_lease checks no argument", "I17",
        &[In("break_lease", "if leasehold.complaint(break_lease.lock_name, gen_random_uuid(), '1 second', null) is not null then", "if false then")],
        "names::sql_refuses_what_is_out_of_range_with_lh002_null_included",
    ),
    mutant(
        "break_lease waits for a fenced transaction", "I14",
        &[In("break_lease", "perform leasehold.mark_changing(break_lease.lock_name);", "perform leasehold.mark_changing(break_lease.lock_name); perform from leasehold.locks as l where l.name = break_lease.lock_name for update;")],
        "fence::break_passes_at_once_and_the_next_grant_waits::in_read_committed",
    ),
    mutant(
        "sweep removes what is held", "live rows stay",
        &[In("sweep", "and l.expires_at <= clock_timestamp() - interval '1 minute'", "")],
        "storage::sweep_removes_what_has_been_free_or_run_out_for_a_minute_and_nothing_else",
    ),
    mutant(
        "sweep removes what has just been let go", "live rows stay",
        &[In("sweep", "and l.expires_at <= clock_timestamp() - interval '1 minute'", "and l.expires_at <= clock_timestamp()")],
        "storage::sweep_removes_what_has_been_free_or_run_out_for_a_minute_and_nothing_else",
    ),
    mutant(
        "sweep removes what ran out and nothing that was released", "nothing is left",
        &[In("sweep", "and l.expires_at <= clock_timestamp() - interval '1 minute'", "and l.owner is not null and l.expires_at <= clock_timestamp() - interval '1 minute'")],
        "storage::sweep_removes_what_has_been_free_or_run_out_for_a_minute_and_nothing_else",
    ),
    mutant(
        "sweep waits for a fenced transaction", "I14",
        &[In("sweep", "and l.expires_at <= clock_timestamp() - interval '1 minute' for update skip locked", "and l.expires_at <= clock_timestamp() - interval '1 minute'")],
        "fence::sweep_leaves_a_fenced_row_alone::in_read_committed",
    ),
    mutant(
        "sweep locks by no key update", "I14",
        &[In("sweep", "and l.expires_at <= clock_timestamp() - interval '1 minute' for update skip locked", "and l.expires_at <= clock_timestamp() - interval '1 minute' for no key update skip locked")],
        "fence::sweep_leaves_a_fenced_row_alone::in_read_committed",
    ),
    mutant(
        "sweeps wait for one another", "cost",
        &[In("sweep", "where g.next_at <= clock_timestamp() for update skip locked", "where g.next_at <= clock_timestamp() for update")],
        "storage::one_session_sweeps_at_a_time_and_the_others_do_not_wait",
    ),
    mutant(
        "sweep goes on without a pause", "cost",
        &[In("sweep", "then interval '1 minute' else interval '0' end", "then interval '0' else interval '0' end")],
        "storage::sweep_rests_at_its_end_and_begins_anew_after_a_minute",
    ),
    mutant(
        "sweep comes to the end and stays there", "nothing is left",
        &[In("sweep", "set swept_to = case when walked < sweep.batch then '' else page_end end", "set swept_to = page_end")],
        "storage::sweep_rests_at_its_end_and_begins_anew_after_a_minute",
    ),
    mutant(
        "sweep begins anew at each step", "nothing is left",
        &[In("sweep", "set swept_to = case when walked < sweep.batch then '' else page_end end", "set swept_to = ''")],
        "storage::sweep_removes_what_has_been_free_or_run_out_for_a_minute_and_nothing_else",
    ),
    mutant(
        "sweep removes clients that have just fallen silent", "first come, first served",
        &[In("sweep", "where c.expires_at <= clock_timestamp() - interval '1 minute'", "where c.expires_at <= clock_timestamp()")],
        "queue_sql::upkeep::sweep_removes_clients_dead_for_a_minute_with_their_waiters_and_nobody_else",
    ),
    mutant(
        "sweep leaves the waiters of the dead behind", "nothing is left",
        &[In("sweep", "where w.client = d.client )", "where w.client = d.client and false )")],
        "queue_sql::upkeep::sweep_removes_clients_dead_for_a_minute_with_their_waiters_and_nobody_else",
    ),
    mutant(
        "sweep removes a client that is just coming back", "first come, first served",
        &[In("sweep", "where c.expires_at <= clock_timestamp() - interval '1 minute' for update skip locked", "where c.expires_at <= clock_timestamp() - interval '1 minute'")],
        "queue_sql::vanished::client_that_is_back_while_a_sweep_is_under_way_is_not_lost_half",
    ),
    mutant(
        "sweep checks no batch", "I17",
        &[In("sweep", "if sweep.batch is null or sweep.batch not between 1 and 100000 then", "if false then")],
        "outcomes_arguments::batch_of_the_sweep_out_of_range_is_refused",
    ),
    mutant(
        "complaint knows no ttl", "I17",
        &[Run("create or replace function leasehold.complaint(lock_name text, owner uuid, ttl interval, holder text)
            returns text language sql stable parallel safe
        begin atomic
            select case
                when complaint.lock_name is null then 'the name is null'
                when octet_length(complaint.lock_name) not between 1 and 512 then 'out of range'
                when complaint.owner is null then 'the owner token is null'
                when octet_length(complaint.holder) > 512 then 'out of range'
            end;
        end")],
        "outcomes_arguments::argument_out_of_range_is_refused_with_the_name_of_the_lock",
    ),
    mutant(
        "complaint knows no owner", "I17",
        &[Run("create or replace function leasehold.complaint(lock_name text, owner uuid, ttl interval, holder text)
            returns text language sql stable parallel safe
        begin atomic
            select case
                when complaint.lock_name is null then 'the name is null'
                when octet_length(complaint.lock_name) not between 1 and 512
                    then format('a name of %s bytes is out of range', octet_length(complaint.lock_name))
                when complaint.ttl is null then 'the ttl is null'
                when complaint.ttl not between interval '100 milliseconds' and interval '24 hours'
                    then format('a ttl of %s is out of range', complaint.ttl)
                when octet_length(complaint.holder) > 512
                    then format('a holder of %s bytes is out of range', octet_length(complaint.holder))
            end;
        end")],
        "outcomes_arguments::argument_out_of_range_is_refused_with_the_name_of_the_lock",
    ),
    mutant(
        "make_durable strengthens nothing", "I7",
        &[In("make_durable", "perform set_config('synchronous_commit', 'on', true);", "null;")],
        "durability::no_function_weakens_synchronous_commit_and_grants_strengthen_it",
    ),
    mutant(
        "make_durable weakens a remote_apply", "I7",
        &[In("make_durable", "current_setting('synchronous_commit') in ('off', 'local', 'remote_write')", "true")],
        "durability::no_function_weakens_synchronous_commit_and_grants_strengthen_it",
    ),
    mutant(
        "make_durable strengthens the whole session", "settings of the caller",
        &[In("make_durable", "'on', true);", "'on', false);")],
        "transactions::settings_of_the_session_are_as_they_were_once_the_transaction_has_ended",
    ),
    mutant(
        "pinned is said of a name that a stranger locks", "I18",
        &[In("pinned", "if not found then return false; end if;", "")],
        "outcomes::row_locked_by_a_stranger_is_never_waited_for",
    ),
    mutant(
        "pinned locks what was granted meanwhile", "I16",
        &[In("pinned", "and (l.owner is null or l.expires_at <= clock_timestamp()) ", "")],
        "queue_sql::interleavings::to_ask_whether_a_name_is_pinned_does_not_lock_a_lease_that_was_granted_meanwhile",
    ),
    mutant(
        "the table of the locks is unlogged", "I7",
        &[Run("alter table leasehold.locks set unlogged")],
        "durability::what_was_granted_survives_a_crash_whatever_the_role_says_of_commits",
    ),
    mutant(
        "the end of a lease is indexed", "cost",
        &[Run("create index locks_expires_at_idx on leasehold.locks (expires_at)")],
        "storage::renewals_are_hot",
    ),
];
