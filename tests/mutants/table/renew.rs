//! Broken variants of `renew`.

use super::Edit::In;
use super::{Mutant, mutant};

#[rustfmt::skip]
pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "renew reads the clock, then waits for the row", "I5",
        &[
            In("renew", "locked := array( select l.owner", "locked_at := clock_timestamp(); locked := array( select l.owner"),
            In("renew", "for no key update of l skip locked", "for no key update of l"),
            In("renew", "if cardinality(locked) > 0 then locked_at := clock_timestamp();", "if cardinality(locked) > 0 then"),
        ],
        "row_locks::renewal_that_finds_the_row_locked_never_revives_a_lease_that_ran_out",
    ),
    mutant(
        "renew in one statement", "I5",
        &[In("renew", "for no key update of l skip locked", "")],
        "row_locks::renewal_that_finds_the_row_locked_never_revives_a_lease_that_ran_out",
    ),
    mutant(
        "renew waits for a locked row", "I16",
        &[In("renew", "for no key update of l skip locked", "for no key update of l")],
        "outcomes::row_locked_by_a_stranger_is_never_waited_for",
    ),
    mutant(
        "renew locks for update", "I12",
        &[In("renew", "for no key update of l skip locked", "for update of l skip locked")],
        "fence::renewal_passes_an_open_fenced_transaction::in_read_committed",
    ),
    mutant(
        "renew revives what ran out", "I5",
        &[In("renew", "and l.owner = any (locked) and l.expires_at > locked_at returning", "and l.owner = any (locked) returning")],
        "outcomes::late_renewal_revives_nothing",
    ),
    mutant(
        "renew asks for no owner", "I4",
        &[
            In("renew", "on l.name = r.name and l.owner = r.owner for", "on l.name = r.name for"),
            In("renew", "and l.owner = r.owner and l.owner = any (locked)", "and l.owner = any (locked)"),
        ],
        "outcomes::renewal_of_a_set_answers_each_for_itself",
    ),
    mutant(
        "renew draws a token", "I4, I12",
        &[In("renew", "expires_at = locked_at +", "fence = nextval('leasehold.locks_fence_seq'), expires_at = locked_at +")],
        "outcomes::renewal_moves_the_end_and_keeps_the_token",
    ),
    mutant(
        "renew adds to what is left", "I15",
        &[In("renew", "expires_at = locked_at +", "expires_at = l.expires_at +")],
        "outcomes::renewal_moves_the_end_and_keeps_the_token",
    ),
    mutant(
        "renew counts the term from the start of the transaction", "I11",
        &[In("renew", "then locked_at := clock_timestamp();", "then locked_at := now();")],
        "transactions::terms_are_counted_from_the_call_and_not_from_the_beginning_of_the_transaction",
    ),
    mutant(
        "renew leaves the ttl as it was", "I15",
        &[In("renew", "set ttl = make_interval(secs => extract(epoch from r.ttl)::double precision), expires_at", "set expires_at")],
        "outcomes::renewal_moves_the_end_and_keeps_the_token",
    ),
    mutant(
        "renew does not force its commit", "I7",
        &[In("renew", "perform leasehold.make_durable();", "")],
        "durability::no_function_weakens_synchronous_commit_and_grants_strengthen_it",
    ),
    mutant(
        "renew checks no argument", "I17",
        &[In("renew", "where leasehold.complaint(r.name, r.owner, r.ttl, null) is not null;", "where false;")],
        "outcomes_arguments::argument_out_of_range_is_refused_with_the_name_of_the_lock",
    ),
    mutant(
        "renew answers a locked row as lost", "I18",
        &[In("renew", "else 'busy' end", "else 'expired' end")],
        "outcomes::row_locked_by_a_stranger_is_never_waited_for",
    ),
    mutant(
        "renew does not tell that the lease passed on", "I18",
        &[In("renew", "when l.owner <> r.owner then 'superseded'", "when l.owner <> r.owner then 'gone'")],
        "outcomes::renewal_of_a_set_answers_each_for_itself",
    ),
    mutant(
        "renew runs with the rights of its caller", "rights",
        &[In("renew", "SECURITY DEFINER ", "")],
        "roles::client_role_acquires_renews_fences_looks_and_releases",
    ),
];
