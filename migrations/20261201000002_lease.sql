-- Adds acquire, renew and release, each with a sibling that takes a set.
--
-- None of them ever waits for a row: what is locked by somebody else is skipped and answered
-- as pinned or busy. The one wait there can be, for another session's uncommitted insert of
-- the same name, is bounded by the caller's lock_timeout and answered as busy too.
do $migration$
declare
    callers_path constant pg_catalog.text := pg_catalog.current_setting('search_path');
begin
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

    if (select coalesce(max(v.version), 0) from leasehold.version as v) < 20261201000002 then
        create or replace function leasehold.reject_argument(lock_name text, complaint text)
            returns void
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        begin
            raise exception '% for lock %', reject_argument.complaint,
                coalesce(quote_literal(left(reject_argument.lock_name, 600)), 'null')
                using errcode = 'LH002',
                    hint = 'A name has 1 to 512 bytes, a ttl lies between 100 ms and 24 h.';
        end
        $$;

        comment on function leasehold.reject_argument(text, text) is
            'Raises LH002 with the complaint and the name of the lock.';

        create or replace function leasehold.complaint(
            lock_name text,
            owner     uuid,
            ttl       interval,
            holder    text
        )
            returns text
            language sql
            stable
            parallel safe
        begin atomic
            select case
                when complaint.lock_name is null then 'the name is null'
                when octet_length(complaint.lock_name) not between 1 and 512
                    then format('a name of %s bytes is out of range', octet_length(complaint.lock_name))
                when complaint.owner is null then 'the owner token is null'
                when complaint.ttl is null then 'the ttl is null'
                when complaint.ttl not between interval '100 milliseconds' and interval '24 hours'
                    then format('a ttl of %s is out of range', complaint.ttl)
                when octet_length(complaint.holder) > 512
                    then format('a holder of %s bytes is out of range', octet_length(complaint.holder))
            end;
        end;

        comment on function leasehold.complaint(text, uuid, interval, text) is
            'What is wrong with the arguments of a lease; null when nothing is. Plain enough to be inlined.';

        create or replace function leasehold.make_durable()
            returns void
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        begin
            if current_setting('synchronous_commit') in ('off', 'local', 'remote_write') then
                perform set_config('synchronous_commit', 'on', true);
            end if;
        end
        $$;

        comment on function leasehold.make_durable() is
            'Strengthens synchronous_commit to on for the present transaction; never weakens it.';

        create or replace function leasehold.pinned(lock_name text)
            returns boolean
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        begin
            -- No-key-update passes beside key-share and conflicts with all else, for update
            -- conflicts with key-share too: the first alone is to be had of a row that only
            -- fenced transactions hold.
            perform
            from leasehold.locks as l
            where l.name = pinned.lock_name
            for no key update skip locked;

            if not found then
                return false;
            end if;

            perform
            from leasehold.locks as l
            where l.name = pinned.lock_name
            for update skip locked;

            return not found;
        end
        $$;

        comment on function leasehold.pinned(text) is
            'Whether an open fenced transaction, and nothing else, holds the row of the lock.';

        create or replace function leasehold.acquire(
            lock_name         text,
            owner             uuid,
            ttl               interval,
            holder            text     default null,
            client            uuid     default null,
            client_ttl        interval default null,
            out outcome       text,
            out fencing_token bigint,
            out expires_in    interval,
            out held_by       text,
            out held_since    timestamptz,
            out ahead         integer
        )
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        declare
            term constant interval := make_interval(secs => extract(epoch from acquire.ttl)::double precision);
            locked_at     timestamptz;
            present       leasehold.locks;
        begin
            if leasehold.complaint(acquire.lock_name, acquire.owner, acquire.ttl, acquire.holder) is not null then
                perform leasehold.reject_argument(
                    acquire.lock_name,
                    leasehold.complaint(acquire.lock_name, acquire.owner, acquire.ttl, acquire.holder)
                );
            end if;

            for attempt in 1..2 loop
                -- The filter runs before the lock, so a held name is a plain read. For update
                -- conflicts with every other lock of the row, key-share included: a plain
                -- update would slip under a fenced transaction's.
                perform
                from leasehold.locks as l
                where l.name = acquire.lock_name
                    and (l.owner is null or l.expires_at <= clock_timestamp())
                for update skip locked;

                if found then
                    -- The token and the clock are drawn only now, while the row is locked.
                    locked_at := clock_timestamp();

                    update leasehold.locks as l
                    set owner = acquire.owner,
                        holder = acquire.holder,
                        ttl = term,
                        fence = nextval('leasehold.locks_fence_seq'),
                        acquired_at = locked_at,
                        expires_at = locked_at + term
                    where l.name = acquire.lock_name
                    returning l.fence into acquire.fencing_token;

                    -- As make_durable does, without the price of a call.
                    if current_setting('synchronous_commit') in ('off', 'local', 'remote_write') then
                        perform set_config('synchronous_commit', 'on', true);
                    end if;

                    acquire.outcome := 'granted';
                    acquire.expires_in := term;
                    return;
                end if;

                select l.*
                into present
                from leasehold.locks as l
                where l.name = acquire.lock_name;

                exit when found;

                -- Never inserted with a token: two sessions may insert at once, and only the
                -- row's lock puts their draws in order.
                begin
                    insert into leasehold.locks (name, fence, acquired_at, expires_at)
                    values (acquire.lock_name, 0, clock_timestamp(), clock_timestamp())
                    on conflict on constraint locks_pkey do nothing;
                exception
                    when lock_not_available then
                        exit;
                end;
            end loop;

            if present.owner = acquire.owner and present.expires_at > clock_timestamp() then
                acquire.outcome := 'granted';
                acquire.fencing_token := present.fence;
                acquire.expires_in := present.expires_at - clock_timestamp();
                return;
            end if;

            acquire.held_by := present.holder;
            if present.owner is not null then
                acquire.held_since := present.acquired_at;
            end if;

            if present.owner is not null and present.expires_at > clock_timestamp() then
                acquire.outcome := 'held';
                acquire.expires_in := present.expires_at - clock_timestamp();
            elsif present.name is not null and leasehold.pinned(acquire.lock_name) then
                acquire.outcome := 'pinned';
            else
                acquire.outcome := 'busy';
            end if;
        end
        $$;

        comment on function leasehold.acquire(text, uuid, interval, text, uuid, interval) is
            'Grants the lease when it is free or has run out. Outcome: granted, held, pinned (by an open fenced transaction) or busy (ask again). Asked again by the same owner it answers with the same grant.';

        create or replace function leasehold.acquire_many(
            lock_names text[],
            owners     uuid[],
            ttls       interval[],
            holders    text[]   default null,
            clients    uuid[]   default null,
            client_ttl interval default null
        )
            returns table (
                owner         uuid,
                outcome       text,
                fencing_token bigint,
                expires_in    interval,
                held_by       text,
                held_since    timestamptz,
                ahead         integer
            )
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        declare
            callers_wait constant text := current_setting('lock_timeout');
            missing      text[];
            free         text[];
            missed       text;
            locked_at    timestamptz;
        begin
            perform leasehold.reject_argument(r.name, leasehold.complaint(r.name, r.owner, r.ttl, r.holder))
            from unnest(
                acquire_many.lock_names, acquire_many.owners, acquire_many.ttls, acquire_many.holders
            ) as r (name, owner, ttl, holder)
            where leasehold.complaint(r.name, r.owner, r.ttl, r.holder) is not null;

            -- Sorted, so that two clients which insert the same new names cannot deadlock.
            missing := array(
                select r.name
                from unnest(acquire_many.lock_names) as r (name)
                where not exists (select from leasehold.locks as l where l.name = r.name)
                order by r.name collate "C"
            );

            if cardinality(missing) > 0 then
                begin
                    insert into leasehold.locks (name, fence, acquired_at, expires_at)
                    select m.name, 0, clock_timestamp(), clock_timestamp()
                    from unnest(missing) as m (name)
                    on conflict on constraint locks_pkey do nothing;
                exception
                    when lock_not_available then
                        -- Another session is just inserting one of them: each goes on alone, with a
                        -- wait so short that all of them together do not hold up the others.
                        perform set_config('lock_timeout', '1ms', true);
                        foreach missed in array missing loop
                            begin
                                insert into leasehold.locks (name, fence, acquired_at, expires_at)
                                values (missed, 0, clock_timestamp(), clock_timestamp())
                                on conflict on constraint locks_pkey do nothing;
                            exception
                                when lock_not_available then
                                    -- Answered as busy.
                                    null;
                            end;
                        end loop;
                        perform set_config('lock_timeout', callers_wait, true);
                end;
            end if;

            -- As in acquire: filter, then the lock that conflicts with key-share too.
            free := array(
                select l.name
                from unnest(acquire_many.lock_names) as r (name)
                    join leasehold.locks as l on l.name = r.name
                where l.owner is null or l.expires_at <= clock_timestamp()
                for update of l skip locked
            );

            if cardinality(free) > 0 then
                locked_at := clock_timestamp();

                update leasehold.locks as l
                set owner = r.owner,
                    holder = r.holder,
                    ttl = make_interval(secs => extract(epoch from r.ttl)::double precision),
                    fence = nextval('leasehold.locks_fence_seq'),
                    acquired_at = locked_at,
                    expires_at = locked_at + make_interval(secs => extract(epoch from r.ttl)::double precision)
                from unnest(
                    acquire_many.lock_names, acquire_many.owners, acquire_many.ttls, acquire_many.holders
                ) as r (name, owner, ttl, holder)
                where l.name = r.name
                    and l.name = any (free);

                perform leasehold.make_durable();
            end if;

            return query
            select
                r.owner,
                s.outcome,
                case when s.outcome = 'granted' then l.fence end,
                case when s.outcome in ('granted', 'held') then l.expires_at - clock_timestamp() end,
                case when s.outcome <> 'granted' then l.holder end,
                case when s.outcome <> 'granted' and l.owner is not null then l.acquired_at end,
                null::integer
            from unnest(acquire_many.lock_names, acquire_many.owners) as r (name, owner)
                left join leasehold.locks as l on l.name = r.name
                cross join lateral (
                    select case
                        when l.name is null then 'busy'
                        when l.owner = r.owner and l.expires_at > clock_timestamp() then 'granted'
                        when l.owner is not null and l.expires_at > clock_timestamp() then 'held'
                        when leasehold.pinned(l.name) then 'pinned'
                        else 'busy'
                    end as outcome
                    -- Keeps the planner from working the outcome out once per column.
                    offset 0
                ) as s;
        end
        $$;

        comment on function leasehold.acquire_many(text[], uuid[], interval[], text[], uuid[], interval) is
            'acquire for a set: one row per request, known by its owner token. Of two requests for one name one is answered as held.';

        create or replace function leasehold.renew(lock_names text[], owners uuid[], ttls interval[])
            returns table (owner uuid, outcome text, expires_in interval)
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        declare
            locked    uuid[];
            locked_at timestamptz;
        begin
            perform leasehold.reject_argument(r.name, leasehold.complaint(r.name, r.owner, r.ttl, null))
            from unnest(renew.lock_names, renew.owners, renew.ttls) as r (name, owner, ttl)
            where leasehold.complaint(r.name, r.owner, r.ttl, null) is not null;

            -- No-key-update passes beside a fenced transaction's key-share. Locked first and
            -- judged by a clock read afterwards, else a renewal revives a lease that ran out.
            locked := array(
                select l.owner
                from unnest(renew.lock_names, renew.owners) as r (name, owner)
                    join leasehold.locks as l on l.name = r.name and l.owner = r.owner
                for no key update of l skip locked
            );

            if cardinality(locked) > 0 then
                locked_at := clock_timestamp();

                return query
                update leasehold.locks as l
                set ttl = make_interval(secs => extract(epoch from r.ttl)::double precision),
                    expires_at = locked_at + make_interval(secs => extract(epoch from r.ttl)::double precision)
                from unnest(renew.lock_names, renew.owners, renew.ttls) as r (name, owner, ttl)
                where l.name = r.name
                    and l.owner = r.owner
                    and l.owner = any (locked)
                    and l.expires_at > locked_at
                returning r.owner, 'renewed', l.ttl;

                perform leasehold.make_durable();
            end if;

            -- What was just renewed is seen here with its new expiry, and left out.
            return query
            select
                r.owner,
                case
                    when l.owner is null then 'gone'
                    when l.owner <> r.owner then 'superseded'
                    when r.owner = any (locked) then 'expired'
                    else 'busy'
                end,
                null::interval
            from unnest(renew.lock_names, renew.owners) as r (name, owner)
                left join leasehold.locks as l on l.name = r.name
            where not (l.owner is not distinct from r.owner and r.owner = any (locked) and l.expires_at > locked_at);
        end
        $$;

        comment on function leasehold.renew(text[], uuid[], interval[]) is
            'Renews each lease that its owner still holds. Outcome: renewed, busy (ask again), superseded, expired or gone.';

        create or replace function leasehold.release(
            lock_name     text,
            owner         uuid,
            hold_at_least interval default '0',
            wake          boolean  default true
        )
            returns text
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        declare
            held_until timestamptz;
        begin
            if leasehold.complaint(release.lock_name, release.owner, '1 second', null) is not null then
                perform leasehold.reject_argument(
                    release.lock_name,
                    leasehold.complaint(release.lock_name, release.owner, '1 second', null)
                );
            elsif release.hold_at_least is null or release.hold_at_least not between '0' and '366 days' then
                perform leasehold.reject_argument(
                    release.lock_name,
                    format('to hold at least %s is out of range', coalesce(release.hold_at_least::text, 'null'))
                );
            end if;

            -- Passes beside a fenced transaction; the next grant still waits for that one.
            select l.acquired_at + make_interval(secs => extract(epoch from release.hold_at_least)::double precision)
            into held_until
            from leasehold.locks as l
            where l.name = release.lock_name
                and l.owner = release.owner
            for no key update skip locked;

            if not found then
                return case
                    when exists (
                        select
                        from leasehold.locks as l
                        where l.name = release.lock_name
                            and l.owner = release.owner
                    ) then 'busy'
                    else 'not_owner'
                end;
            end if;

            if release.hold_at_least > '0' and held_until > clock_timestamp() then
                -- Taken on by an owner that nobody knows. Without a ttl no fence passes.
                update leasehold.locks as l
                set owner = gen_random_uuid(),
                    ttl = null,
                    expires_at = held_until
                where l.name = release.lock_name;

                perform leasehold.make_durable();
                return 'held_on';
            end if;

            update leasehold.locks as l
            set owner = null,
                holder = null,
                ttl = null,
                expires_at = clock_timestamp()
            where l.name = release.lock_name;

            return 'released';
        end
        $$;

        comment on function leasehold.release(text, uuid, interval, boolean) is
            'Frees the lease if the owner still holds it. Outcome: released, held_on (until hold_at_least after the acquisition), not_owner or busy (ask again).';

        create or replace function leasehold.release_many(
            lock_names    text[],
            owners        uuid[],
            hold_at_least interval[] default null,
            wake          boolean    default true
        )
            returns table (owner uuid, outcome text)
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        declare
            locked    uuid[];
            locked_at timestamptz;
        begin
            perform leasehold.reject_argument(r.name, leasehold.complaint(r.name, r.owner, '1 second', null))
            from unnest(release_many.lock_names, release_many.owners) as r (name, owner)
            where leasehold.complaint(r.name, r.owner, '1 second', null) is not null;

            perform leasehold.reject_argument(r.name, format('to hold at least %s is out of range', r.hold))
            from unnest(release_many.lock_names, release_many.hold_at_least) as r (name, hold)
            where r.hold not between '0' and '366 days';

            -- As in release: passes beside a fenced transaction.
            locked := array(
                select l.owner
                from unnest(release_many.lock_names, release_many.owners) as r (name, owner)
                    join leasehold.locks as l on l.name = r.name and l.owner = r.owner
                for no key update of l skip locked
            );
            locked_at := clock_timestamp();

            return query
            update leasehold.locks as l
            set owner = case when u.held_until > locked_at then gen_random_uuid() end,
                holder = case when u.held_until > locked_at then l.holder end,
                ttl = null,
                expires_at = greatest(u.held_until, locked_at)
            from (
                select
                    r.name,
                    r.owner,
                    k.acquired_at + make_interval(secs => extract(epoch from r.hold)::double precision) as held_until
                from unnest(release_many.lock_names, release_many.owners, release_many.hold_at_least) as r (name, owner, hold)
                    join leasehold.locks as k on k.name = r.name
            ) as u
            where l.name = u.name
                and l.owner = u.owner
                and l.owner = any (locked)
            returning u.owner, case when l.owner is null then 'released' else 'held_on' end;

            if exists (
                select
                from unnest(release_many.hold_at_least) as h (hold)
                where h.hold > '0'
            ) then
                perform leasehold.make_durable();
            end if;

            return query
            select
                r.owner,
                case
                    when exists (
                        select
                        from leasehold.locks as l
                        where l.name = r.name
                            and l.owner = r.owner
                    ) then 'busy'
                    else 'not_owner'
                end
            from unnest(release_many.lock_names, release_many.owners) as r (name, owner)
            where r.owner <> all (locked);
        end
        $$;

        comment on function leasehold.release_many(text[], uuid[], interval[], boolean) is
            'release for a set: one row per request, known by its owner token.';

        revoke all on all functions in schema leasehold from public;

        insert into leasehold.version (version) values (20261201000002);
    end if;

    perform pg_catalog.set_config('search_path', callers_path, true);
end
$migration$;
