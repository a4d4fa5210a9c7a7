-- Adds what people run a lock service with: break_lease, the sweep and the view of held leases.
--
-- Additive: older clients keep working.
do $migration$
declare
    callers_path constant pg_catalog.text := pg_catalog.current_setting('search_path');
begin
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

    if (select coalesce(max(v.version), 0) from leasehold.version as v) < 20261201000004 then
        create or replace function leasehold.break_lease(lock_name text)
            returns boolean
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        begin
            if leasehold.complaint(break_lease.lock_name, gen_random_uuid(), '1 second', null) is not null then
                perform leasehold.reject_argument(
                    break_lease.lock_name,
                    leasehold.complaint(break_lease.lock_name, gen_random_uuid(), '1 second', null)
                );
            end if;

            -- A plain update passes beside a fenced transaction; the next grant still waits for that one.
            update leasehold.locks as l
            set owner = null,
                holder = null,
                ttl = null,
                expires_at = clock_timestamp()
            where l.name = break_lease.lock_name
                and l.owner is not null;

            if not found then
                return false;
            end if;

            perform leasehold.make_durable();
            return true;
        end
        $$;

        comment on function leasehold.break_lease(text) is
            'Ends whatever lease there is of that name; its holder is fenced out. Returns whether there was one.';

        create table leasehold.sweeps (
            one      boolean     not null default true,
            swept_to text        collate "C" not null default '',
            next_at  timestamptz not null default clock_timestamp(),

            constraint sweeps_pkey primary key (one),
            constraint sweeps_one check (one)
        ) with (fillfactor = 50);

        comment on table leasehold.sweeps is
            'The gate of the sweep: one row, so that one client sweeps; how far it has come, and when it goes on.';

        insert into leasehold.sweeps default values;

        create or replace function leasehold.sweep(
            batch         integer default 1000,
            out removed   integer,
            out again_in  interval
        )
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        declare
            page_after text;
            page_end   text;
            walked     integer;
        begin
            if sweep.batch is null or sweep.batch not between 1 and 100000 then
                raise exception 'a batch of % rows is out of range', coalesce(sweep.batch::text, 'null')
                    using errcode = 'LH002',
                        hint = 'A batch has 1 to 100000 rows.';
            end if;

            sweep.removed := 0;

            -- Conflicts with another sweep alone, which is left to its work.
            select g.swept_to
            into page_after
            from leasehold.sweeps as g
            where g.next_at <= clock_timestamp()
            for update skip locked;

            if not found then
                select greatest(g.next_at - clock_timestamp(), '1 second')
                into sweep.again_in
                from leasehold.sweeps as g;
                return;
            end if;

            select max(p.name), count(*)
            into page_end, walked
            from (
                select l.name
                from leasehold.locks as l
                where l.name > page_after
                order by l.name
                limit sweep.batch
            ) as p;

            -- For update, so that a row is left alone which a fenced transaction pins or somebody
            -- is just acquiring.
            with dead as materialized (
                select l.name
                from leasehold.locks as l
                where l.name > page_after
                    and l.name <= page_end
                    and l.expires_at <= clock_timestamp() - interval '1 minute'
                for update skip locked
            )
            delete from leasehold.locks as l
            using dead as d
            where l.name = d.name;

            get diagnostics removed = row_count;

            sweep.again_in := case when walked < sweep.batch then interval '1 minute' else interval '0' end;

            update leasehold.sweeps as g
            set swept_to = case when walked < sweep.batch then '' else page_end end,
                next_at = clock_timestamp() + sweep.again_in;
        end
        $$;

        comment on function leasehold.sweep(integer) is
            'One step of the sweep, which removes rows that have been free or run out for a minute. Call it again after again_in.';

        create view leasehold.held as
        select
            l.name,
            l.holder,
            l.fence as fencing_token,
            l.acquired_at as held_since,
            l.expires_at - clock_timestamp() as expires_in,
            l.expires_at <= clock_timestamp() as expired
        from leasehold.locks as l
        where l.owner is not null;

        comment on view leasehold.held is
            'Who holds what, since when and for how long. Owner tokens are not in it.';

        revoke all on all functions in schema leasehold from public;

        insert into leasehold.version (version) values (20261201000004);
    end if;

    perform pg_catalog.set_config('search_path', callers_path, true);
end
$migration$;
