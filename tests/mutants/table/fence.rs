//! Broken variants of what a fenced write stands on: `fence`, `admit` and the trigger `reject_stale`.

use super::Edit::In;
use super::{Mutant, mutant};

#[rustfmt::skip]
pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "fence by a plain select", "I3",
        &[In("fence", "for key share;", ";")],
        "fence::grant_of_a_run_out_name_waits_for_the_fenced_transaction::in_read_committed",
    ),
    mutant(
        "fence for share", "I12",
        &[In("fence", "for key share;", "for share;")],
        "fence::renewal_passes_an_open_fenced_transaction::in_read_committed",
    ),
    mutant(
        "fence for update", "I12",
        &[In("fence", "for key share;", "for update;")],
        "fence::fenced_writes_share_one_grant::in_read_committed",
    ),
    mutant(
        "fence by at least", "I3",
        &[In("fence", "and l.fence = fence.fencing_token", "and l.fence <= fence.fencing_token")],
        "fence::fence_refuses_nulls_and_unknown_names",
    ),
    mutant(
        "fence by at most", "I3, I3s",
        &[In("fence", "and l.fence = fence.fencing_token", "and l.fence >= fence.fencing_token")],
        "fence::fence_refuses_nulls_and_unknown_names",
    ),
    mutant(
        "fence asks for no owner", "I3s",
        &[In("fence", "and l.owner = coalesce(fence.owner, l.owner)", "and l.owner is not null")],
        "fence::wrong_owner_is_refused::in_read_committed",
    ),
    mutant(
        "fence passes what is free", "I3s",
        &[
            In("fence", "and l.owner = coalesce(fence.owner, l.owner)", "and coalesce(l.owner = fence.owner, true)"),
            In("fence", "and l.ttl is not null", ""),
        ],
        "fence::released_held_on_or_broken_lease_is_refused::in_read_committed",
    ),
    mutant(
        "fence passes what is held on", "I3s",
        &[In("fence", "and l.ttl is not null", "")],
        "fence::released_held_on_or_broken_lease_is_refused::in_read_committed",
    ),
    mutant(
        "fence refuses what ran out and nobody took over", "I12",
        &[In("fence", "and l.ttl is not null", "and l.ttl is not null and l.expires_at > clock_timestamp()")],
        "fence::run_out_lease_that_nobody_took_over_still_fences::in_read_committed",
    ),
    mutant(
        "fence lets a stopped transaction pin the name", "I14",
        &[In("fence", "if idle_limit = '0' or idle_limit > term then", "if false then")],
        "fence::fence_lowers_the_idle_limit_of_its_transaction_and_never_raises_it",
    ),
    mutant(
        "fence raises the idle limit", "I14",
        &[In("fence", "if idle_limit = '0' or idle_limit > term then", "if true then")],
        "fence::fence_lowers_the_idle_limit_of_its_transaction_and_never_raises_it",
    ),
    mutant(
        "fence lowers the idle limit of the whole session", "settings of the caller",
        &[In("fence", "'ms', true );", "'ms', false );")],
        "fence::fence_lowers_the_idle_limit_of_its_transaction_and_never_raises_it",
    ),
    mutant(
        "fence runs with the rights of its caller", "rights",
        &[In("fence", "SECURITY DEFINER ", "")],
        "roles::client_role_acquires_renews_fences_looks_and_releases",
    ),
    mutant(
        "fence is left to parallel workers", "I3",
        &[In("fence", "RETURNS bigint LANGUAGE plpgsql ", "RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE ")],
        "fence_plans::statements::fence_is_never_left_to_a_parallel_worker",
    ),
    mutant(
        "fence is taken for a stable function", "I3",
        &[In("fence", "RETURNS bigint LANGUAGE plpgsql ", "RETURNS bigint LANGUAGE plpgsql STABLE ")],
        "fence::grant_of_a_run_out_name_waits_for_the_fenced_transaction::in_read_committed",
    ),
    mutant(
        "admit accepts a lower token", "I3",
        &[In("admit", "where f.fence <= excluded.fence", "")],
        "admit::resources::lower_token_is_refused_and_equal_and_higher_ones_pass::in_read_committed",
    ),
    mutant(
        "admit refuses the same token again", "I12",
        &[In("admit", "where f.fence <= excluded.fence", "where f.fence < excluded.fence")],
        "admit::resources::lower_token_is_refused_and_equal_and_higher_ones_pass::in_read_committed",
    ),
    mutant(
        "admit compares by the snapshot", "I3",
        &[
            In("admit", "where admit.fencing_token is not null", "where admit.fencing_token is not null and not exists (select from leasehold.fences as g where g.resource = admit.resource and g.fence > admit.fencing_token)"),
            In("admit", "where f.fence <= excluded.fence", ""),
        ],
        "admit::contention::lower_token_never_commits_after_a_higher_one::in_read_committed",
    ),
    mutant(
        "admit does not remember the token", "I3",
        &[In("admit", "set fence = excluded.fence", "set fence = f.fence")],
        "admit::resources::lower_token_is_refused_and_equal_and_higher_ones_pass::in_read_committed",
    ),
    mutant(
        "admit takes null", "I17",
        &[In("admit", "if not found then", "if not found and admit.fencing_token is not null then")],
        "admit::resources::null_token_is_refused_and_leaves_no_mark",
    ),
    mutant(
        "admit checks no resource", "I17",
        &[In("admit", "if coalesce(octet_length(admit.resource), 0) not between 1 and 512 then", "if false then")],
        "admit::resources::resource_of_no_bytes_or_too_many_or_none_is_an_argument_out_of_range",
    ),
    mutant(
        "admit runs with the rights of its caller", "rights",
        &[In("admit", "SECURITY DEFINER ", "")],
        "admit::resources::role_with_execute_on_admit_alone_admits_and_can_neither_read_nor_write_what_is_kept",
    ),
    mutant(
        "reject_stale accepts a lower token", "I3",
        &[In("reject_stale", "coalesce((arriving ->> tg_argv[0])::numeric < present, true)", "coalesce((arriving ->> tg_argv[0])::numeric < 0, true)")],
        "admit::trigger::lower_token_and_null_after_one_are_refused_in_every_kind_of_update",
    ),
    mutant(
        "reject_stale refuses the same token again", "I12",
        &[In("reject_stale", "::numeric < present", "::numeric <= present")],
        "admit::trigger::lower_token_and_null_after_one_are_refused_in_every_kind_of_update",
    ),
    mutant(
        "reject_stale accepts null after a token", "I3",
        &[In("reject_stale", "< present, true)", "< present, false)")],
        "admit::trigger::lower_token_and_null_after_one_are_refused_in_every_kind_of_update",
    ),
    mutant(
        "reject_stale compares as text", "I3",
        &[In("reject_stale", "(arriving ->> tg_argv[0])::numeric < present,", "(arriving ->> tg_argv[0])::text < present::text,")],
        "admit::trigger::whole_range_of_tokens_is_compared_as_numbers",
    ),
    mutant(
        "reject_stale takes a wrong set-up for a guard", "I17",
        &[In("reject_stale", "if tg_nargs <> 1 or tg_level <> 'ROW' or tg_when <> 'BEFORE' or tg_op = 'DELETE' or not arriving ? tg_argv[0] then", "if false then")],
        "admit::trigger_misuse::trigger_that_is_set_up_wrong_is_named_with_the_right_way",
    ),
    mutant(
        "reject_stale gives the schema owner's rights to casts", "rights",
        &[In("reject_stale", "RETURNS trigger LANGUAGE plpgsql ", "RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER ")],
        "admit::trigger_misuse::who_may_create_the_trigger_gets_no_rights_of_the_schemas_owner_by_it",
    ),
];
