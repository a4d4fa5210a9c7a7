-- Adds the fence for what is not in the lock's database, or has a fence column of its own.
--
-- Additive: older clients keep working.
do $migration$
declare
    callers_path constant pg_catalog.text := pg_catalog.current_setting('search_path');
begin
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

    if (select coalesce(max(v.version), 0) from leasehold.version as v) < 20261201000006 then
        create table leasehold.fences (
            resource text   collate "C" not null,
            fence    bigint not null,

            constraint fences_pkey primary key (resource),
            constraint fences_resource_length check (octet_length(resource) between 1 and 512)
        ) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

        comment on table leasehold.fences is
            'The highest fencing token that each resource has accepted. A row stays for good, on purpose.';

        create or replace function leasehold.admit(resource text, fencing_token bigint)
            returns bigint
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        begin
            if coalesce(octet_length(admit.resource), 0) not between 1 and 512 then
                raise exception 'a resource of % bytes is out of range', coalesce(octet_length(admit.resource)::text, 'null')
                    using errcode = 'LH002',
                        hint = 'A resource has 1 to 512 bytes.';
            end if;

            -- Conflicts with every other admit of the resource until the transaction ends: the one
            -- that waits compares with what the other has left behind. A snapshot that is older than
            -- that gets 40001. Equal passes: the same grant may write again.
            insert into leasehold.fences as f (resource, fence)
            select admit.resource, admit.fencing_token
            where admit.fencing_token is not null
            on conflict on constraint fences_pkey do update
            set fence = excluded.fence
            where f.fence <= excluded.fence;

            if not found then
                raise exception 'fencing token % is stale for resource %',
                    coalesce(admit.fencing_token::text, 'null'), quote_literal(admit.resource)
                    using errcode = 'LH001',
                        hint = 'Roll back and acquire the lease again.';
            end if;

            return admit.fencing_token;
        end
        $$;

        comment on function leasehold.admit(text, bigint) is
            'Returns the token and remembers it, or raises LH001 when the resource has accepted a higher one; no other token is admitted until the transaction ends.';

        create or replace function leasehold.reject_stale()
            returns trigger
            language plpgsql
            volatile
            parallel unsafe
            -- Not the definer: to_jsonb runs casts that the table's owner may have written.
            security invoker
            set search_path = pg_catalog, pg_temp
        as $$
        declare
            arriving constant jsonb := to_jsonb(new);
            -- Of any scale: a fence column need not be bigint.
            present  numeric;
        begin
            -- What is deleted has no new row to return: it would be left in place without a word.
            if tg_nargs <> 1 or tg_level <> 'ROW' or tg_when <> 'BEFORE' or tg_op = 'DELETE'
                or not arriving ? tg_argv[0]
            then
                raise exception 'trigger % on table %.% does not name a column that holds fencing tokens',
                    quote_ident(tg_name), quote_ident(tg_table_schema), quote_ident(tg_table_name)
                    using errcode = 'LH002',
                        hint = 'before update for each row execute function leasehold.reject_stale(''<column>'')';
            end if;

            if tg_op = 'UPDATE' then
                -- The row is locked by now, and old is its latest version.
                present := (to_jsonb(old) ->> tg_argv[0])::numeric;

                if present is not null and coalesce((arriving ->> tg_argv[0])::numeric < present, true) then
                    raise exception 'fencing token % is stale for table %.%, which has %',
                        coalesce(arriving ->> tg_argv[0], 'null'),
                        quote_ident(tg_table_schema), quote_ident(tg_table_name), present
                        using errcode = 'LH001',
                            hint = 'Roll back and acquire the lease again.';
                end if;
            end if;

            return new;
        end
        $$;

        comment on function leasehold.reject_stale() is
            'Row trigger before update: raises LH001 when the column that its argument names would get a lower fencing token. A writer that leaves the column alone is not noticed.';

        revoke all on all functions in schema leasehold from public;

        insert into leasehold.version (version) values (20261201000006);
    end if;

    perform pg_catalog.set_config('search_path', callers_path, true);
end
$migration$;
