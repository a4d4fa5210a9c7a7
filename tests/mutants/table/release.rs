//! Broken variants of `release` and `release_many`.

use super::Edit::In;
use super::{Mutant, mutant};

#[rustfmt::skip]
pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "release asks for no owner", "I6",
        &[In("release", "and l.owner = release.owner for no key update", "for no key update")],
        "outcomes::release_frees_what_its_owner_holds_and_nothing_else",
    ),
    mutant(
        "release locks for update", "I12, I14",
        &[In("release", "for no key update skip locked", "for update skip locked")],
        "fence::release_passes_at_once_and_the_next_grant_waits::in_read_committed",
    ),
    mutant(
        "release waits for a locked row", "I14",
        &[In("release", "for no key update skip locked", "for no key update")],
        "outcomes::row_locked_by_a_stranger_is_never_waited_for",
    ),
    mutant(
        "release keeps the owner", "I3s, I6",
        &[In("release", "set owner = null, holder = null, ttl = null, expires_at = clock_timestamp()", "set expires_at = clock_timestamp()")],
        "fence::released_held_on_or_broken_lease_is_refused::in_read_committed",
    ),
    mutant(
        "release ignores hold_at_least", "hold_at_least",
        &[In("release", "if release.hold_at_least > '0' then", "if false then")],
        "outcomes::name_is_held_on_from_the_acquisition_by_nobody_known",
    ),
    mutant(
        "release counts hold_at_least from the release", "hold_at_least",
        &[In("release", "expires_at = l.acquired_at + make_interval", "expires_at = clock_timestamp() + make_interval")],
        "outcomes::name_is_held_on_from_the_acquisition_by_nobody_known",
    ),
    mutant(
        "release without a hold looks at the clock of the acquisition", "I14 under clock steps",
        &[In("release", "if release.hold_at_least > '0' then", "if true then")],
        "outcomes::release_without_a_hold_frees_the_name_although_the_clock_was_stepped_back_since",
    ),
    mutant(
        "release holds on for its owner", "I6",
        &[In("release", "set owner = gen_random_uuid(),", "set")],
        "outcomes::name_is_held_on_from_the_acquisition_by_nobody_known",
    ),
    mutant(
        "release holds on with a ttl", "I3s",
        &[
            In("release", "set owner = gen_random_uuid(), ttl = null,", "set owner = gen_random_uuid(),"),
            In("fence", "and l.owner = coalesce(fence.owner, l.owner) and l.ttl is not null", "and l.owner = coalesce(fence.owner, l.owner)"),
        ],
        "fence::released_held_on_or_broken_lease_is_refused::in_read_committed",
    ),
    mutant(
        "release does not force the commit of a hold", "I7",
        &[In("release", "perform leasehold.make_durable(); return 'held_on';", "return 'held_on';")],
        "durability::no_function_weakens_synchronous_commit_and_grants_strengthen_it",
    ),
    mutant(
        "release forces its commit without a hold", "cost",
        &[In("release", "return 'released';", "perform leasehold.make_durable(); return 'released';")],
        "durability::no_function_weakens_synchronous_commit_and_grants_strengthen_it",
    ),
    mutant(
        "release does not mark the queue", "I13",
        &[In("release", "pg_try_advisory_xact_lock_shared(leasehold.mark(release.lock_name)) into", "true into")],
        "queue_sql::interleavings::look_beside_an_uncommitted_release_that_has_not_seen_the_waiter_is_busy_and_tells_who_holds_it",
    ),
    mutant(
        "release wakes nobody", "I13",
        &[In("release", "perform leasehold.wake(release.lock_name);", "null;")],
        "queue_sql::wakes::whatever_frees_the_name_tells_the_first_live_waiter_and_nobody_else",
    ),
    mutant(
        "release that holds on wakes nobody", "I13",
        &[In("release", "if release.wake and exists", "if release.wake and not is_held_on and exists")],
        "queue_sql::wakes::whatever_frees_the_name_tells_the_first_live_waiter_and_nobody_else",
    ),
    mutant(
        "release wakes though told not to", "I14 with a full queue",
        &[In("release", "if release.wake and exists", "if exists")],
        "queue_sql::wakes::what_frees_nothing_or_is_told_not_to_wake_tells_nobody",
    ),
    mutant(
        "release answers a locked row as somebody else's", "I6, I18",
        &[In("release", "then 'busy' else 'not_owner'", "then 'not_owner' else 'not_owner'")],
        "outcomes::row_locked_by_a_stranger_is_never_waited_for",
    ),
    mutant(
        "release leaves the end as it was", "I14",
        &[In("release", "ttl = null, expires_at = clock_timestamp() where", "ttl = null where")],
        "storage::row_of_a_free_name_tells_since_when_it_is_free",
    ),
    mutant(
        "release checks no argument", "I17",
        &[In("release", "if not leasehold.fits(release.lock_name, release.owner, '1 second', null) then", "if false then")],
        "outcomes_arguments::argument_out_of_range_is_refused_with_the_name_of_the_lock",
    ),
    mutant(
        "release checks no hold_at_least", "I17",
        &[In("release", "elsif release.hold_at_least is null or release.hold_at_least not between '0' and '366 days' then", "elsif false then")],
        "outcomes_arguments::argument_out_of_range_is_refused_with_the_name_of_the_lock",
    ),
    mutant(
        "release reads a name from its oldest version on", "cost",
        &[In("release", "where n.name >= release.lock_name and n.name <= release.lock_name order by n.name desc limit 1", "where n.name = release.lock_name")],
        "storage::names_are_read_from_their_newest_version_on_while_a_snapshot_is_open",
    ),
    mutant(
        "release_many reads a name from its oldest version on", "cost",
        &[In("release_many", "where n.name >= r.name and n.name <= r.name order by n.name desc limit 1", "where n.name = r.name")],
        "storage::names_are_read_from_their_newest_version_on_while_a_snapshot_is_open",
    ),
    mutant(
        "release_many asks for no owner", "I6",
        &[In("release_many", "where n.ctid = k.spot and n.owner = r.owner for no key", "where n.ctid = k.spot for no key")],
        "outcomes::release_of_a_set_answers_each_for_itself",
    ),
    mutant(
        "release_many locks for update", "I12, I14",
        &[In("release_many", "for no key update of n skip locked", "for update of n skip locked")],
        "outcomes::row_locked_by_a_stranger_is_never_waited_for",
    ),
    mutant(
        "release_many waits for a locked row", "I14",
        &[In("release_many", "for no key update of n skip locked", "for no key update of n")],
        "outcomes::row_locked_by_a_stranger_is_never_waited_for",
    ),
    mutant(
        "release_many ignores hold_at_least", "hold_at_least",
        &[In("release_many", "when r.hold > '0' then l.acquired_at", "when false then l.acquired_at")],
        "outcomes::release_of_a_set_answers_each_for_itself",
    ),
    mutant(
        "release_many without a hold looks at the clock of the acquisition", "I14 under clock steps",
        &[In("release_many", "when r.hold > '0' then l.acquired_at", "when r.hold >= '0' then l.acquired_at")],
        "outcomes::release_without_a_hold_frees_the_name_although_the_clock_was_stepped_back_since",
    ),
    mutant(
        "release_many holds on for its owner", "I6",
        &[In("release_many", "then gen_random_uuid() end", "then l.owner end")],
        "outcomes::name_that_was_held_before_is_held_on_from_its_latest_acquisition",
    ),
    mutant(
        "release_many keeps the ttl", "I3s",
        &[
            In("release_many", "ttl = null,", ""),
            In("fence", "and l.owner = coalesce(fence.owner, l.owner) and l.ttl is not null", "and l.owner = coalesce(fence.owner, l.owner)"),
        ],
        "fence::released_held_on_or_broken_lease_is_refused::in_read_committed",
    ),
    mutant(
        "release_many leaves the end as it was", "nothing is left",
        &[In("release_many", "expires_at = greatest(t.held_until, t.locked_at)", "expires_at = greatest(t.held_until, l.expires_at)")],
        "storage::row_of_a_free_name_tells_since_when_it_is_free",
    ),
    mutant(
        "release_many does not force the commit of a hold", "I7",
        &[In("release_many", "perform leasehold.make_durable();", "null;")],
        "durability::no_function_weakens_synchronous_commit_and_grants_strengthen_it",
    ),
    mutant(
        "release_many does not mark the queue", "I13",
        &[In("release_many", "not release_many.wake or pg_try_advisory_xact_lock_shared(leasehold.mark(l.name)) as is_marked", "true as is_marked")],
        "queue_sql::interleavings::look_beside_an_uncommitted_release_that_has_not_seen_the_waiter_is_busy_and_tells_who_holds_it",
    ),
    mutant(
        "release_many wakes nobody", "I13",
        &[In("release_many", "perform leasehold.wake(f.name) from", "perform f.name from")],
        "queue_sql::wakes::release_of_a_set_tells_the_first_of_each_name_that_was_released",
    ),
    mutant(
        "release_many wakes though told not to", "I14 with a full queue",
        &[In("release_many", "if release_many.wake then if", "if true then if")],
        "queue_sql::wakes::what_frees_nothing_or_is_told_not_to_wake_tells_nobody",
    ),
    mutant(
        "release_many wakes for what it did not release", "I13",
        &[In("release_many", "from unnest(freed) as f (name) where exists", "from unnest(release_many.lock_names) as f (name) where exists")],
        "queue_sql::wakes::release_of_a_set_tells_the_first_of_each_name_that_was_released",
    ),
    mutant(
        "release_many checks no argument", "I17",
        &[In("release_many", "where not leasehold.fits(r.name, r.owner, '1 second', null) or r.hold", "where r.hold")],
        "outcomes_arguments::argument_out_of_range_is_refused_with_the_name_of_the_lock",
    ),
    mutant(
        "release_many checks no hold_at_least", "I17",
        &[In("release_many", "or r.hold not between '0' and '366 days';", ";")],
        "outcomes_arguments::argument_out_of_range_is_refused_with_the_name_of_the_lock",
    ),
];
