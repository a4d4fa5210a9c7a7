-- Adds the schema leasehold: which migrations are in, the locks, and the sequence their
-- fencing tokens come from.
--
-- Every file is one block that does nothing where leasehold.version is already at or above
-- it. So the files may be run by leasehold::migrate, by sqlx migrate run or from an
-- application's own folder, one way after another, in any order of releases, and none puts
-- an older function back or restarts the sequence.
do $migration$
declare
    callers_path constant pg_catalog.text := pg_catalog.current_setting('search_path');
    installed             pg_catalog.bool := false;
begin
    -- Names in what follows are bound now: the caller's path must not choose them.
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

    if to_regclass('leasehold.version') is not null then
        select max(v.version) >= 20261201000001 into installed from leasehold.version as v;
    end if;

    if not coalesce(installed, false) then
        create schema if not exists leasehold;

        comment on schema leasehold is
            'Leases with fencing tokens. The functions are the interface, the tables are private.';

        create table leasehold.version (
            version      bigint      not null,
            installed_at timestamptz not null default clock_timestamp(),

            constraint version_pkey primary key (version)
        );

        comment on table leasehold.version is
            'One row per migration that is in; the highest one is the version of the schema.';

        create table leasehold.locks (
            name        text        collate "C" not null,
            owner       uuid,
            holder      text,
            ttl         interval,
            fence       bigserial   not null,
            acquired_at timestamptz not null,
            expires_at  timestamptz not null,

            constraint locks_pkey primary key (name),
            constraint locks_name_length check (octet_length(name) between 1 and 512)
        ) with (
            -- Half a page stays free, so that an update finds room on its own page and is HOT.
            -- For the same reason there is no index but the primary key.
            fillfactor = 50,
            autovacuum_vacuum_scale_factor = 0,
            autovacuum_vacuum_threshold = 1000,
            autovacuum_analyze_scale_factor = 0,
            autovacuum_analyze_threshold = 10000,
            autovacuum_vacuum_cost_delay = 0
        );

        comment on table leasehold.locks is
            'One row per lease held or lately let go; owner null means free. fence comes from the sequence alone.';
        comment on column leasehold.locks.owner is
            'The owner token, known only to its holder. A lease held on after its release has one that nobody knows.';
        comment on column leasehold.locks.ttl is
            'In seconds, so that a day is 86,400 s across daylight saving. Null: free, or held on after its release.';
        comment on column leasehold.locks.fence is
            'The fencing token of the latest grant; 0 before the first.';
        comment on column leasehold.locks.expires_at is
            'Until when the grant is honoured; of a free row, since when it is free.';

        -- Microseconds since 1970, less 2^40 (12.7 days): a newer installation is above an older
        -- one, and every later jump is decided by the clock. Below 2^53 until the year 2255.
        perform setval(
            'leasehold.locks_fence_seq',
            (extract(epoch from clock_timestamp()) * 1000000)::bigint - (1::bigint << 40),
            false
        );

        insert into leasehold.version (version) values (20261201000001);
    end if;

    perform pg_catalog.set_config('search_path', callers_path, true);
end
$migration$;
