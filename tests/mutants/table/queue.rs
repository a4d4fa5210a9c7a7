//! Broken variants of the queue: who stands in line, who is woken, who is alive.

use super::Edit::{In, Run};
use super::{Mutant, mutant};

#[rustfmt::skip]
pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "wake tells nobody", "I13",
        &[In("wake", "pg_notify(leasehold.channel(w.client), w.ticket::text)", "length(w.ticket::text)")],
        "queue_sql::wakes::whatever_frees_the_name_tells_the_first_live_waiter_and_nobody_else",
    ),
    mutant(
        "wake tells the last in line", "I13",
        &[In("wake", "order by f.ticket limit 1", "order by f.ticket desc limit 1")],
        "queue_sql::wakes::whatever_frees_the_name_tells_the_first_live_waiter_and_nobody_else",
    ),
    mutant(
        "wake tells all", "cost",
        &[In("wake", "order by f.ticket limit 1", "order by f.ticket")],
        "queue_sql::wakes::whatever_frees_the_name_tells_the_first_live_waiter_and_nobody_else",
    ),
    mutant(
        "wake tells the dead", "I13",
        &[In("wake", "from leasehold.live_waiters as f", "from leasehold.waiters as f")],
        "queue_sql::wakes::whatever_frees_the_name_tells_the_first_live_waiter_and_nobody_else",
    ),
    mutant(
        "wake tells the first in any line", "I13",
        &[In("wake", "where f.name = wake.lock_name", "")],
        "queue_sql::wakes::release_of_a_set_tells_the_first_of_each_name_that_was_released",
    ),
    mutant(
        "wake tells the owner token", "rights",
        &[
            In("wake", "w.ticket::text)", "w.owner::text)"),
            In("wake", "select f.client, f.ticket", "select f.client, f.ticket, f.owner"),
        ],
        "queue_sql::wakes::neither_channel_nor_payload_tells_an_owner_token_or_a_client",
    ),
    mutant(
        "channel tells the client", "rights",
        &[Run("create or replace function leasehold.channel(client uuid) returns text language sql immutable parallel safe
            begin atomic select 'leasehold_' || replace(channel.client::text, '-', ''); end")],
        "queue_sql::wakes::neither_channel_nor_payload_tells_an_owner_token_or_a_client",
    ),
    mutant(
        "mark is another for each name", "I14: lock table",
        &[Run("create or replace function leasehold.mark(lock_name text) returns bigint language sql immutable parallel safe
            begin atomic select (1279806532::bigint << 32) | (hashtext(mark.lock_name) & 1048575); end")],
        "queue_sql::writes::thousands_of_names_that_change_in_one_transaction_take_sixty_four_locks",
    ),
    mutant(
        "mark_changing marks nothing", "I13",
        &[In("mark_changing", "exit when pg_try_advisory_xact_lock_shared(leasehold.mark(mark_changing.lock_name));", "exit;")],
        "queue_sql::leaving::look_beside_the_uncommitted_leave_of_the_one_ahead_is_busy",
    ),
    mutant(
        "mark_changing waits for a stranger", "I14",
        &[In("mark_changing", "exit when pg_try_advisory_xact_lock_shared(leasehold.mark(mark_changing.lock_name));", "perform pg_advisory_xact_lock_shared(leasehold.mark(mark_changing.lock_name)); exit;")],
        "queue_sql::interleavings::stranger_who_keeps_the_mark_for_itself_holds_up_nobody",
    ),
    mutant(
        "is_changing says no", "I13",
        &[In("is_changing", "return not (", "return false and not (")],
        "queue_sql::interleavings::look_beside_an_uncommitted_release_that_has_not_seen_the_waiter_is_busy_and_tells_who_holds_it",
    ),
    mutant(
        "is_changing keeps the lock", "I14",
        &[In("is_changing", "and pg_advisory_unlock(leasehold.mark(is_changing.lock_name))", "")],
        "queue_sql::interleavings::look_beside_what_frees_nothing_is_queued",
    ),
    mutant(
        "ahead counts the dead", "I14",
        &[In("ahead", "where (select c.expires_at from leasehold.clients as c where c.client = g.client) > clock_timestamp()", "")],
        "queue_sql::order::waiters_whose_client_is_dead_are_overtaken_and_counted_by_nobody",
    ),
    mutant(
        "ahead counts who asks", "I14",
        &[In("ahead", "and w.ticket < coalesce(ahead.ticket,", "and w.ticket <= coalesce(ahead.ticket,")],
        "queue_sql::interleavings::waiter_that_registers_for_a_free_name_with_somebody_ahead_is_served_once_that_one_has_gone",
    ),
    mutant(
        "places count the dead", "I14",
        &[In("places", "count(a.client) over before", "count(*) over before")],
        "queue_sql::order::waiters_whose_client_is_dead_are_overtaken_and_counted_by_nobody",
    ),
    mutant(
        "places count over all names", "I14",
        &[In("places", "partition by v.name order by v.ticket", "order by v.ticket")],
        "queue_sql::order::set_puts_the_waiters_of_each_name_in_line_and_grants_what_is_free_of_a_line",
    ),
    mutant(
        "check_client_ttl lets everything pass", "I17",
        &[In("check_client_ttl", "if check_client_ttl.client_ttl not between interval '100 milliseconds' and interval '1 hour' then", "if false then")],
        "queue_sql::upkeep::client_arguments_out_of_range_are_refused_and_change_nothing",
    ),
    mutant(
        "keep_client keeps nobody", "first come, first served",
        &[In("keep_client", "set expires_at = clock_timestamp() + term", "set expires_at = c.expires_at")],
        "queue_sql::vanished::silent_client_is_passed_over_and_has_its_place_again_when_it_comes_back_in_time",
    ),
    mutant(
        "keep_client takes no ttl", "first come, first served",
        &[In("keep_client", "coalesce(keep_client.client_ttl, '3 seconds')", "'3 seconds'::interval")],
        "queue_sql::vanished::client_is_alive_for_its_ttl_and_not_longer",
    ),
    mutant(
        "keep_client makes no new client", "I14",
        &[In("keep_client", "if not found then insert", "if false then insert")],
        "queue_sql::vanished::waiters_whose_rows_a_crash_took_are_unknown_and_queue_again",
    ),
    mutant(
        "stand_in_line keeps nobody alive", "I14",
        &[In("stand_in_line", "perform leasehold.keep_client(stand_in_line.client, stand_in_line.client_ttl);", "null;")],
        "queue_sql::wakes::whatever_frees_the_name_tells_the_first_live_waiter_and_nobody_else",
    ),
    mutant(
        "stand_in_line writes the client each time", "cost",
        &[In("stand_in_line", "and c.expires_at > clock_timestamp() +", "and false and c.expires_at > clock_timestamp() +")],
        "queue_sql::upkeep::client_row_is_written_once_half_of_its_time_is_over_and_not_per_waiter",
    ),
    mutant(
        "stand_in_line moves who waits already", "first come, first served",
        &[In("stand_in_line", "do nothing returning ticket", "do update set name = excluded.name, client = excluded.client returning ticket")],
        "queue_sql::harm::owner_that_is_just_put_in_line_is_not_moved_to_another_name",
    ),
    mutant(
        "leave stays", "first come, first served",
        &[In("leave", "delete from leasehold.waiters as w where w.owner = leave.owner;", "")],
        "queue_sql::leaving::leave_is_answered_true_once_and_false_for_whoever_does_not_stand_in_line",
    ),
    mutant(
        "leave does not mark the queue", "I13",
        &[In("leave", "perform leasehold.mark_changing(gone.name);", "")],
        "queue_sql::leaving::look_beside_the_uncommitted_leave_of_the_one_ahead_is_busy",
    ),
    mutant(
        "leave wakes nobody", "I13",
        &[In("leave", "perform leasehold.wake(gone.name);", "null;")],
        "queue_sql::wakes::leave_of_the_first_tells_the_next_be_the_name_free_or_held_and_leave_of_another_tells_nobody",
    ),
    mutant(
        "leave wakes the first whoever leaves", "cost",
        &[In("leave", "if leasehold.ahead(gone.name, gone.ticket) = 0 then", "if true then")],
        "queue_sql::wakes::leave_of_the_first_tells_the_next_be_the_name_free_or_held_and_leave_of_another_tells_nobody",
    ),
    mutant(
        "heartbeat keeps nobody alive", "first come, first served",
        &[In("heartbeat", "perform leasehold.keep_client(heartbeat.client, heartbeat.client_ttl);", "")],
        "queue_sql::vanished::silent_client_is_passed_over_and_has_its_place_again_when_it_comes_back_in_time",
    ),
    mutant(
        "heartbeat leaves behind who is not named", "I14",
        &[In("heartbeat", "where leasehold.leave(n.owner);", "where false;")],
        "queue_sql::leaving::late_acquire_overtaken_by_its_leave_is_taken_out_by_the_heartbeat_and_the_next_is_told",
    ),
    mutant(
        "heartbeat takes out other clients' waiters", "first come, first served",
        &[In("heartbeat", "where w.client = heartbeat.client and w.owner <> all", "where w.owner <> all")],
        "queue_sql::harm::heartbeat_of_one_client_does_not_speak_for_the_waiters_of_another",
    ),
    mutant(
        "heartbeat speaks for other clients' waiters", "rights",
        &[In("heartbeat", "on w.owner = r.owner and w.client = heartbeat.client", "on w.owner = r.owner")],
        "queue_sql::harm::heartbeat_of_one_client_does_not_speak_for_the_waiters_of_another",
    ),
    mutant(
        "heartbeat never says try", "I14",
        &[In("heartbeat", "then 'try'", "then 'wait'")],
        "queue_sql::upkeep::heartbeat_says_try_to_the_head_of_a_free_name_and_wait_to_everybody_else",
    ),
    mutant(
        "heartbeat says try to everybody", "cost",
        &[In("heartbeat", "when q.ahead = 0 and (l.owner is null", "when (l.owner is null")],
        "queue_sql::upkeep::heartbeat_says_try_to_the_head_of_a_free_name_and_wait_to_everybody_else",
    ),
    mutant(
        "heartbeat does not say try when the lease ran out", "I14",
        &[In("heartbeat", "and (l.owner is null or l.expires_at <= clock_timestamp()) then 'try'", "and l.owner is null then 'try'")],
        "queue_sql::upkeep::heartbeat_says_try_to_the_head_of_a_free_name_and_wait_to_everybody_else",
    ),
    mutant(
        "heartbeat does not tell a waiter that was swept", "I14",
        &[In("heartbeat", "when m.ticket is null then 'unknown' ", "")],
        "queue_sql::vanished::waiter_whose_client_was_swept_is_unknown_and_queues_again_at_the_end",
    ),
    mutant(
        "heartbeat checks no client", "I17",
        &[In("heartbeat", "if heartbeat.client is null then", "if false then")],
        "queue_sql::upkeep::client_arguments_out_of_range_are_refused_and_change_nothing",
    ),
    mutant(
        "heartbeat may scan the queue", "cost",
        &[In("heartbeat", "SET enable_seqscan TO 'off' ", "")],
        "queue_sql::plans::plans_made_while_nobody_waits_read_few_rows_when_tens_of_thousands_wait_for_other_names",
    ),
    mutant(
        "live_waiters count the dead", "I14",
        &[Run("create or replace view leasehold.live_waiters as select w.name, w.ticket, w.owner, w.client from leasehold.waiters as w")],
        "queue_sql::order::waiters_whose_client_is_dead_are_overtaken_and_counted_by_nobody",
    ),
    mutant(
        "anybody may leave for a waiter", "rights",
        &[Run("grant execute on function leasehold.keep_client(uuid, interval), leasehold.wake(text) to public")],
        "roles::usage_of_the_schema_alone_opens_nothing_in_it",
    ),
];
