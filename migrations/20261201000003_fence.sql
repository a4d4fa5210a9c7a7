-- Adds leasehold.fence, which makes a transaction conditional on a grant.
--
-- Additive: older clients keep working.
do $migration$
declare
    callers_path constant pg_catalog.text := pg_catalog.current_setting('search_path');
begin
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

    if (select coalesce(max(v.version), 0) from leasehold.version as v) < 20261201000003 then
        create or replace function leasehold.fence(lock_name text, fencing_token bigint, owner uuid default null)
            returns bigint
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        declare
            term       interval;
            idle_limit constant interval := current_setting('idle_in_transaction_session_timeout')::interval;
        begin
            -- Key-share conflicts with the next grant and with the sweep, which lock the row for
            -- update, and with nothing else: renewals and release go on while the transaction runs.
            -- Equality, never "at least". No clock: what has run out still fences until it is taken over.
            -- A free row has no owner, and a row held on after its release has no ttl.
            select l.ttl
            into term
            from leasehold.locks as l
            where l.name = fence.lock_name
                and l.fence = fence.fencing_token
                and l.owner = coalesce(fence.owner, l.owner)
                and l.ttl is not null
            for key share;

            if not found then
                raise exception 'fencing token % is not current for lock %',
                    coalesce(fence.fencing_token::text, 'null'),
                    coalesce(quote_literal(left(fence.lock_name, 600)), 'null')
                    using errcode = 'LH001',
                        hint = 'Roll back and acquire the lease again.';
            end if;

            -- A process stopped in this transaction must not pin the name for ever. Lowered, never
            -- raised; 0 means none here.
            if idle_limit = '0' or idle_limit > term then
                perform set_config(
                    'idle_in_transaction_session_timeout',
                    ceil(extract(epoch from term) * 1000)::bigint || 'ms',
                    true
                );
            end if;

            return fence.fencing_token;
        end
        $$;

        comment on function leasehold.fence(text, bigint, uuid) is
            'Returns the token, or raises LH001 when the grant is not current; no other grant happens until the transaction ends.';

        revoke all on all functions in schema leasehold from public;

        insert into leasehold.version (version) values (20261201000003);
    end if;

    perform pg_catalog.set_config('search_path', callers_path, true);
end
$migration$;
