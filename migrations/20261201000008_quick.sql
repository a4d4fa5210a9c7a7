-- Makes acquire and release quicker, alone and for a set, and the lengths of long lines. What they
-- answer is as before.
--
-- Additive: older clients keep working.
--
-- What counts is how many statements start inside a function, each of which takes 5 to 10 us before
-- it does anything, and that they are planned once (plan_cache_mode): where a plan for the given
-- arguments looks cheaper than one for any, each call would plan anew. With arrays of few elements
-- it always does, and took 0.4 ms.
--
-- And that a name is looked up from its newest version on. While some session keeps a snapshot open, a
-- backup for instance, no dead version is removed, and an index leads through all of them, oldest first:
-- after 20,000 grants of a name under one, acquire and release went on at a quarter of their rate. Read
-- backwards it meets the live one among the first. An equation would be read forwards whatever the order
-- asked for, so it is written as two inequalities, and no bitmap is allowed, which has no order. The row
-- is then locked, and updated, where it lies; what an index yields is priced so high for a set that no
-- plan reads all of one to find a few rows.
do $migration$
declare
    callers_path constant pg_catalog.text := pg_catalog.current_setting('search_path');
begin
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

    if (select coalesce(max(v.version), 0) from leasehold.version as v) < 20261201000008 then
        -- An update parses a check constraint each time anew: 5 us. Names come in through acquire and
        -- acquire_many alone, which look at their length.
        alter table leasehold.locks drop constraint if exists locks_name_length;

        create or replace function leasehold.fits(lock_name text, owner uuid, ttl interval, holder text)
            returns boolean
            language sql
            stable
            parallel safe
        begin atomic
            select fits.lock_name is not null
                and fits.owner is not null
                and fits.ttl is not null
                and octet_length(fits.lock_name) between 1 and 512
                and fits.ttl between interval '100 milliseconds' and interval '24 hours'
                and coalesce(octet_length(fits.holder) <= 512, true);
        end;

        comment on function leasehold.fits(text, uuid, interval, text) is
            'Whether complaint has nothing to say; it takes longer to ask. Plain enough to be inlined.';

        alter function leasehold.wake(text) set plan_cache_mode = force_generic_plan;
        alter function leasehold.ticket(uuid) set plan_cache_mode = force_generic_plan;
        alter function leasehold.leave(uuid) set plan_cache_mode = force_generic_plan;
        alter function leasehold.keep_client(uuid, interval) set plan_cache_mode = force_generic_plan;
        alter function leasehold.stand_in_line(text, uuid, uuid, interval) set plan_cache_mode = force_generic_plan;

        create or replace function leasehold.ahead(lock_name text, ticket bigint)
            returns integer
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
            set enable_seqscan = off
            set plan_cache_mode = force_generic_plan
        as $$
        declare
            waiters integer;
        begin
            -- Looks once for each client, of which there are few, not once for each waiter. Materialized, or the
            -- index of the clients may be read from end to end, because it is in the right order.
            with line as materialized (
                select w.client
                from leasehold.waiters as w
                where w.name = ahead.lock_name
                    and w.ticket < coalesce(ahead.ticket, 9223372036854775807)
            )
            select coalesce(sum(g.waiters), 0)
            into waiters
            from (select v.client, count(*) as waiters from line as v group by v.client) as g
            where (select c.expires_at from leasehold.clients as c where c.client = g.client) > clock_timestamp();

            return waiters;
        end
        $$;

        create or replace function leasehold.places(lock_names text[])
            returns table (name text, owner uuid, ticket bigint, ahead integer)
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
            set enable_seqscan = off
            set plan_cache_mode = force_generic_plan
        as $$
        begin
            return query
            with line as materialized (
                select
                    w.name,
                    w.owner,
                    w.ticket,
                    w.client
                from leasehold.waiters as w
                where w.name = any (places.lock_names)
            ), alive as materialized (
                select g.client
                from (select distinct v.client from line as v) as g
                where (select c.expires_at from leasehold.clients as c where c.client = g.client) > clock_timestamp()
            )
            select
                v.name,
                v.owner,
                v.ticket,
                (count(a.client) over before)::integer
            from line as v
                left join alive as a on a.client = v.client
            window before as (
                partition by v.name
                order by v.ticket
                rows between unbounded preceding and 1 preceding
            );
        end
        $$;

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
            set enable_seqscan = off
            set enable_bitmapscan = off
            set plan_cache_mode = force_generic_plan
        as $$
        declare
            term        interval;
            spot        tid;
            locked_at   timestamptz;
            is_foreign  boolean;
            timeline    text;
            highest     bigint;
            has_row     boolean;
            is_changing boolean := false;
            my_ticket   bigint;
            my_place    integer := 0;
            present     record;
        begin
            if not leasehold.fits(acquire.lock_name, acquire.owner, acquire.ttl, acquire.holder) then
                perform leasehold.reject_argument(
                    acquire.lock_name,
                    leasehold.complaint(acquire.lock_name, acquire.owner, acquire.ttl, acquire.holder)
                );
            end if;

            if acquire.client is not null then
                perform leasehold.check_client_ttl(acquire.client_ttl);
            end if;

            term := make_interval(secs => extract(epoch from acquire.ttl)::double precision);

            -- Once more when there was no row, or somebody was quicker.
            for attempt in 1..2 loop
                -- A plain read, which is all that a held name costs. The queue is looked at here, before the
                -- row is locked: a latecomer who locks first and looks second is in the way of the one
                -- who was just woken.
                select
                    l.ctid as spot,
                    l.owner,
                    l.holder,
                    l.fence,
                    l.acquired_at,
                    l.expires_at,
                    exists (select from leasehold.waiters as w where w.name = acquire.lock_name) as has_queue
                into present
                from leasehold.locks as l
                where l.name >= acquire.lock_name
                    and l.name <= acquire.lock_name
                order by l.name desc
                limit 1;

                has_row := found;
                if not has_row then
                    exit when attempt = 2;

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

                    continue;
                end if;

                exit when present.owner is not null and present.expires_at > clock_timestamp();

                exit when present.has_queue and exists (
                    select
                    from leasehold.live_waiters as w
                    where w.name = acquire.lock_name
                        and w.owner <> acquire.owner
                        and w.ticket < coalesce(
                            (select m.ticket from leasehold.waiters as m where m.owner = acquire.owner),
                            w.ticket + 1
                        )
                );

                -- Filtered again, before the lock. For update conflicts with every other lock of the row,
                -- key-share included: a plain update would slip under a fenced transaction's.
                select
                    e.floor is null,
                    e.timeline,
                    greatest(l.fence, e.floor - 1),
                    l.ctid
                into is_foreign, timeline, highest, spot
                from leasehold.locks as l
                    left join leasehold.epoch as e on e.one
                where l.ctid = present.spot
                    and l.name = acquire.lock_name
                    and (l.owner is null or l.expires_at <= clock_timestamp())
                for update of l skip locked;

                continue when not found;

                -- The token and the clock are drawn only now, while the row is locked.
                locked_at := clock_timestamp();
                acquire.fencing_token := nextval('leasehold.locks_fence_seq');

                -- A server that was promoted or restored has another timeline, and a sequence that
                -- may have forgotten what it gave out. Not asked of one that did not tell before:
                -- it may have no such functions, or not let them be called.
                if timeline is not null then
                    is_foreign := timeline <> left(pg_walfile_name(pg_current_wal_lsn()), 8);
                end if;

                if is_foreign or acquire.fencing_token <= highest then
                    perform leasehold.enter_epoch(highest);
                    acquire.fencing_token := nextval('leasehold.locks_fence_seq');

                    -- Drawn before by this session, by a sequence with a cache: a jump does away
                    -- with the rest. The row of the epoch is locked.
                    if acquire.fencing_token <= highest then
                        perform leasehold.jump('a session kept tokens that are behind one in use', highest);
                        acquire.fencing_token := nextval('leasehold.locks_fence_seq');
                    end if;

                    locked_at := clock_timestamp();
                end if;

                update leasehold.locks as l
                set owner = acquire.owner,
                    holder = acquire.holder,
                    ttl = term,
                    fence = acquire.fencing_token,
                    acquired_at = locked_at,
                    expires_at = locked_at + term
                where l.ctid = spot;

                -- As make_durable does, without the price of a call.
                if current_setting('synchronous_commit') in ('off', 'local', 'remote_write') then
                    perform set_config('synchronous_commit', 'on', true);
                end if;

                if present.has_queue then
                    delete from leasehold.waiters as w
                    where w.owner = acquire.owner;
                end if;

                acquire.outcome := 'granted';
                acquire.expires_in := term;
                return;
            end loop;

            -- The second look, which decides to sleep. Whether the queue is just changing is asked before
            -- the row is read: a release that has looked for waiters too early to see this one has
            -- either said so, or is seen below.
            if acquire.client is not null and present.has_queue then
                select w.ticket
                into my_ticket
                from leasehold.waiters as w
                where w.owner = acquire.owner;

                if found then
                    my_place := leasehold.ahead(acquire.lock_name, my_ticket);
                    is_changing := my_place <= 1 and leasehold.is_changing(acquire.lock_name);

                    select l.owner, l.holder, l.fence, l.acquired_at, l.expires_at, true as has_queue
                    into present
                    from leasehold.locks as l
                    where l.name >= acquire.lock_name
                        and l.name <= acquire.lock_name
                    order by l.name desc
                    limit 1;

                    has_row := found;
                end if;
            end if;

            if present.owner = acquire.owner and present.expires_at > clock_timestamp() then
                acquire.outcome := 'granted';
                acquire.fencing_token := present.fence;
                acquire.expires_in := present.expires_at - clock_timestamp();
                return;
            end if;

            if acquire.client is not null and my_ticket is null then
                my_ticket := leasehold.stand_in_line(
                    acquire.lock_name, acquire.owner, acquire.client, acquire.client_ttl
                );
                my_place := leasehold.ahead(acquire.lock_name, my_ticket);
            elsif acquire.client is null and present.has_queue then
                my_place := leasehold.ahead(acquire.lock_name, null);
            end if;

            acquire.ahead := my_place;
            acquire.held_by := present.holder;
            if present.owner is not null then
                acquire.held_since := present.acquired_at;
            end if;
            if present.owner is not null and present.expires_at > clock_timestamp() then
                acquire.expires_in := present.expires_at - clock_timestamp();
            end if;

            if not has_row or is_changing then
                acquire.outcome := 'busy';
            elsif acquire.expires_in is not null or acquire.ahead > 0 then
                acquire.outcome := case when acquire.client is null then 'held' else 'queued' end;
            elsif leasehold.pinned(acquire.lock_name) then
                acquire.outcome := 'pinned';
            else
                acquire.outcome := 'busy';
            end if;
        end
        $$;

        create or replace function leasehold.look_again(
            lock_names text[],
            owners     uuid[],
            clients    uuid[],
            client_ttl interval
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
            set enable_seqscan = off
            set enable_bitmapscan = off
            set plan_cache_mode = force_generic_plan
        as $$
        declare
            changing uuid[] := '{}';
        begin
            if array_remove(look_again.clients, null) <> '{}' then
                -- As in acquire: first whether a queue is just changing, then the rows.
                changing := array(
                    select r.owner
                    from unnest(look_again.owners, look_again.clients) as r (owner, client)
                        join leasehold.places(look_again.lock_names) as p on p.owner = r.owner
                    where r.client is not null
                        and p.ahead <= 1
                        and leasehold.is_changing(p.name)
                );

                perform leasehold.stand_in_line(s.name, s.owner, s.client, look_again.client_ttl)
                from (
                    select r.name, r.owner, r.client
                    from unnest(look_again.lock_names, look_again.owners, look_again.clients)
                            with ordinality as r (name, owner, client, place)
                        left join lateral (
                            select n.owner, n.expires_at
                            from leasehold.locks as n
                            where n.name >= r.name
                                and n.name <= r.name
                            order by n.name desc
                            limit 1
                        ) as l on true
                    where r.client is not null
                        and (l.owner is distinct from r.owner or l.expires_at <= clock_timestamp())
                        and not exists (select from leasehold.waiters as w where w.owner = r.owner)
                    order by r.place
                ) as s;
            end if;

            return query
            select
                r.owner,
                s.outcome,
                case when s.outcome = 'granted' then l.fence end,
                case when l.owner is not null and l.expires_at > clock_timestamp() then l.expires_at - clock_timestamp() end,
                case when s.outcome <> 'granted' then l.holder end,
                case when s.outcome <> 'granted' and l.owner is not null then l.acquired_at end,
                q.ahead
            from unnest(look_again.lock_names, look_again.owners, look_again.clients) as r (name, owner, client)
                left join lateral (
                    select n.*
                    from leasehold.locks as n
                    where n.name >= r.name
                        and n.name <= r.name
                    order by n.name desc
                    limit 1
                ) as l on true
                left join leasehold.places(look_again.lock_names) as p on p.owner = r.owner
                cross join lateral (
                    select case
                        when l.owner = r.owner and l.expires_at > clock_timestamp() then null
                        when p.owner is not null then p.ahead
                        when exists (select from leasehold.waiters as w where w.name = r.name)
                            then leasehold.ahead(r.name, null)
                        else 0
                    end as ahead
                    -- Keeps the planner from working it out once per column.
                    offset 0
                ) as q
                cross join lateral (
                    select case
                        when q.ahead is null then 'granted'
                        when l.name is null or r.owner = any (changing) then 'busy'
                        when (l.owner is not null and l.expires_at > clock_timestamp()) or q.ahead > 0
                            then case when r.client is null then 'held' else 'queued' end
                        when leasehold.pinned(l.name) then 'pinned'
                        else 'busy'
                    end as outcome
                    offset 0
                ) as s;
        end
        $$;

        comment on function leasehold.look_again(text[], uuid[], uuid[], interval) is
            'What acquire_many answers when not all are granted. Whoever comes with a client stands in line afterwards.';

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
            set enable_seqscan = off
            set enable_bitmapscan = off
            set cpu_index_tuple_cost = 100
            set jit = off
            set plan_cache_mode = force_generic_plan
        as $$
        declare
            callers_wait constant text := current_setting('lock_timeout');
            timeline     text;
            floor        bigint;
            highest      bigint;
            is_foreign   boolean;
            is_behind    boolean;
            winners      uuid[];
            terms        interval[];
            tokens       bigint[];
            granted      uuid[] := '{}';
            granted_for  interval[] := '{}';
            granted_with bigint[] := '{}';
            missing      text[];
            missed       text;
        begin
            perform leasehold.reject_argument(r.name, leasehold.complaint(r.name, r.owner, r.ttl, r.holder))
            from unnest(
                acquire_many.lock_names, acquire_many.owners, acquire_many.ttls, acquire_many.holders
            ) as r (name, owner, ttl, holder)
            where not leasehold.fits(r.name, r.owner, r.ttl, r.holder);

            if array_remove(acquire_many.clients, null) <> '{}' then
                perform leasehold.check_client_ttl(acquire_many.client_ttl);
            end if;

            -- As in acquire, but for all of them before the first token is drawn. Read from the sequence as
            -- from a table, it would be scanned, which enable_seqscan makes so dear that the plan is
            -- compiled each time.
            select e.floor, e.timeline
            into floor, timeline
            from leasehold.epoch as e
            where e.one;

            is_foreign := floor is null or coalesce(pg_sequence_last_value('leasehold.locks_fence_seq'), 0) < floor - 1;
            if timeline is not null and not is_foreign then
                is_foreign := timeline <> left(pg_walfile_name(pg_current_wal_lsn()), 8);
            end if;

            if is_foreign and leasehold.enter_epoch(floor - 1) then
                select e.floor
                into floor
                from leasehold.epoch as e
                where e.one;
            end if;

            for attempt in 1..2 loop
                -- As in acquire: filter, the queue too, then the lock that conflicts with key-share too, and
                -- only then, all of them locked, the clock and the tokens. Of several that ask for one
                -- name, the first that was named.
                with free as materialized (
                    select
                        l.name,
                        r.owner,
                        r.ttl,
                        r.holder,
                        r.place,
                        l.fence,
                        l.spot
                    from unnest(
                        acquire_many.lock_names, acquire_many.owners, acquire_many.ttls, acquire_many.holders
                    ) with ordinality as r (name, owner, ttl, holder, place)
                        cross join lateral (
                            select n.ctid as spot
                            from leasehold.locks as n
                            where n.name >= r.name
                                and n.name <= r.name
                            order by n.name desc
                            limit 1
                        ) as k
                        cross join lateral (
                            select n.ctid as spot, n.name, n.fence
                            from leasehold.locks as n
                            where n.ctid = k.spot
                                and (n.owner is null or n.expires_at <= clock_timestamp())
                                and not exists (
                                    select
                                    from leasehold.live_waiters as w
                                    where w.name = r.name
                                        and w.owner <> r.owner
                                        and w.ticket < coalesce(
                                            (select m.ticket from leasehold.waiters as m where m.owner = r.owner),
                                            w.ticket + 1
                                        )
                                )
                            for update of n skip locked
                        ) as l
                ), winner as materialized (
                    select distinct on (f.name)
                        f.name,
                        f.owner,
                        make_interval(secs => extract(epoch from f.ttl)::double precision) as term,
                        f.holder,
                        f.fence,
                        f.spot,
                        clock_timestamp() as locked_at
                    from free as f
                    order by f.name, f.place
                ), updated as (
                    update leasehold.locks as l
                    set owner = w.owner,
                        holder = w.holder,
                        ttl = w.term,
                        fence = nextval('leasehold.locks_fence_seq'),
                        acquired_at = w.locked_at,
                        expires_at = w.locked_at + w.term
                    from winner as w
                    where l.ctid = w.spot
                    returning l.owner, l.ttl, l.fence, w.fence as former
                )
                select
                    array_agg(u.owner),
                    array_agg(u.ttl),
                    array_agg(u.fence),
                    greatest(max(u.former), floor - 1),
                    min(u.fence) <= greatest(max(u.former), floor - 1)
                into winners, terms, tokens, highest, is_behind
                from updated as u;

                if winners is not null then
                    -- As in acquire; or the sequence has begun anew among these.
                    for draw in 1..2 loop
                        exit when not is_behind;

                        if draw = 2 or not leasehold.enter_epoch(highest) then
                            perform leasehold.jump('a session kept tokens that are behind one in use', highest);
                        end if;

                        with updated as (
                            update leasehold.locks as l
                            set fence = nextval('leasehold.locks_fence_seq'),
                                acquired_at = clock_timestamp(),
                                expires_at = clock_timestamp() + l.ttl
                            from unnest(acquire_many.lock_names, acquire_many.owners) as r (name, owner)
                            where l.name = r.name
                                and l.owner = r.owner
                                and l.owner = any (winners)
                            returning l.owner, l.ttl, l.fence
                        )
                        select
                            array_agg(u.owner),
                            array_agg(u.ttl),
                            array_agg(u.fence),
                            min(u.fence) <= highest
                        into winners, terms, tokens, is_behind
                        from updated as u;
                    end loop;

                    if current_setting('synchronous_commit') in ('off', 'local', 'remote_write') then
                        perform set_config('synchronous_commit', 'on', true);
                    end if;

                    -- Not in the statement above, or a trigger on the grant sees the line without them.
                    delete from leasehold.waiters as w
                    where w.owner = any (winners);

                    granted := granted || winners;
                    granted_for := granted_for || terms;
                    granted_with := granted_with || tokens;
                end if;

                if cardinality(granted) = cardinality(acquire_many.owners) then
                    return query
                    select g.owner, 'granted', g.token, g.term, null::text, null::timestamptz, null::integer
                    from unnest(granted, granted_for, granted_with) as g (owner, term, token);
                    return;
                end if;

                exit when attempt = 2;

                -- Sorted, so that two clients which insert the same new names cannot deadlock.
                missing := array(
                    select distinct r.name collate "C"
                    from unnest(acquire_many.lock_names) as r (name)
                        left join lateral (
                            select n.name
                            from leasehold.locks as n
                            where n.name >= r.name
                                and n.name <= r.name
                            order by n.name desc
                            limit 1
                        ) as l on true
                    where l.name is null
                    order by 1
                );

                exit when missing = '{}';

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
            end loop;

            return query
            select a.*
            from leasehold.look_again(
                acquire_many.lock_names, acquire_many.owners, acquire_many.clients, acquire_many.client_ttl
            ) as a;
        end
        $$;

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
            set enable_seqscan = off
            set enable_bitmapscan = off
            set plan_cache_mode = force_generic_plan
        as $$
        declare
            spot       tid;
            is_marked  boolean;
            is_held_on boolean := false;
        begin
            if not leasehold.fits(release.lock_name, release.owner, '1 second', null) then
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
            select l.ctid, pg_try_advisory_xact_lock_shared(leasehold.mark(release.lock_name))
            into spot, is_marked
            from leasehold.locks as l
            where l.ctid = (
                    select n.ctid
                    from leasehold.locks as n
                    where n.name >= release.lock_name
                        and n.name <= release.lock_name
                    order by n.name desc
                    limit 1
                )
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

            -- Somebody was just looking for the mark of this name, or of another that shares it.
            if not is_marked then
                perform leasehold.mark_changing(release.lock_name);
            end if;

            if release.hold_at_least > '0' then
                -- Taken on by an owner that nobody knows. Without a ttl no fence passes.
                update leasehold.locks as l
                set owner = gen_random_uuid(),
                    ttl = null,
                    expires_at = l.acquired_at
                        + make_interval(secs => extract(epoch from release.hold_at_least)::double precision)
                where l.ctid = spot
                    and l.acquired_at + make_interval(secs => extract(epoch from release.hold_at_least)::double precision)
                        > clock_timestamp();

                is_held_on := found;
            end if;

            if not is_held_on then
                update leasehold.locks as l
                set owner = null,
                    holder = null,
                    ttl = null,
                    expires_at = clock_timestamp()
                where l.ctid = spot;
            end if;

            -- Whoever is first may try now, or waits for another moment than before.
            if release.wake and exists (select from leasehold.waiters as w where w.name = release.lock_name) then
                perform leasehold.wake(release.lock_name);
            end if;

            if is_held_on then
                perform leasehold.make_durable();
                return 'held_on';
            end if;

            return 'released';
        end
        $$;

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
            set enable_seqscan = off
            set enable_bitmapscan = off
            set cpu_index_tuple_cost = 100
            set jit = off
            set plan_cache_mode = force_generic_plan
        as $$
        declare
            is_marked boolean;
            freed     text[];
            released  uuid[];
            outcomes  text[];
        begin
            perform leasehold.reject_argument(
                r.name,
                coalesce(
                    leasehold.complaint(r.name, r.owner, '1 second', null),
                    format('to hold at least %s is out of range', r.hold)
                )
            )
            from unnest(release_many.lock_names, release_many.owners, release_many.hold_at_least) as r (name, owner, hold)
            where not leasehold.fits(r.name, r.owner, '1 second', null)
                or r.hold not between '0' and '366 days';

            -- As in release: passes beside a fenced transaction.
            with locked as materialized (
                select
                    l.name,
                    l.owner,
                    l.spot,
                    -- Null without a hold: an acquisition may lie ahead of a clock that was stepped back.
                    case
                        when r.hold > '0'
                            then l.acquired_at + make_interval(secs => extract(epoch from r.hold)::double precision)
                    end as held_until,
                    not release_many.wake or pg_try_advisory_xact_lock_shared(leasehold.mark(l.name)) as is_marked
                from unnest(release_many.lock_names, release_many.owners, release_many.hold_at_least) as r (name, owner, hold)
                    cross join lateral (
                        select n.ctid as spot
                        from leasehold.locks as n
                        where n.name >= r.name
                            and n.name <= r.name
                        order by n.name desc
                        limit 1
                    ) as k
                    cross join lateral (
                        select n.ctid as spot, n.name, n.owner, n.acquired_at
                        from leasehold.locks as n
                        where n.ctid = k.spot
                            and n.owner = r.owner
                        for no key update of n skip locked
                    ) as l
            ), timed as materialized (
                select
                    k.*,
                    clock_timestamp() as locked_at
                from locked as k
            ), updated as (
                update leasehold.locks as l
                set owner = case when t.held_until > t.locked_at then gen_random_uuid() end,
                    holder = case when t.held_until > t.locked_at then l.holder end,
                    ttl = null,
                    expires_at = greatest(t.held_until, t.locked_at)
                from timed as t
                where l.ctid = t.spot
                returning t.owner, t.name, case when l.owner is null then 'released' else 'held_on' end as outcome, t.is_marked
            )
            select
                array_agg(u.owner),
                array_agg(u.outcome),
                array_agg(u.name),
                bool_and(u.is_marked)
            into released, outcomes, freed, is_marked
            from updated as u;

            if release_many.wake then
                if not is_marked then
                    perform leasehold.mark_changing(f.name)
                    from unnest(freed) as f (name);
                end if;

                perform leasehold.wake(f.name)
                from unnest(freed) as f (name)
                where exists (select from leasehold.waiters as w where w.name = f.name);
            end if;

            if 'held_on' = any (outcomes) then
                perform leasehold.make_durable();
            end if;

            return query
            select r.owner, r.outcome
            from unnest(released, outcomes) as r (owner, outcome);

            if cardinality(release_many.owners) > coalesce(cardinality(released), 0) then
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
                where r.owner <> all (coalesce(released, '{}'));
            end if;
        end
        $$;

        revoke all on all functions in schema leasehold from public;

        insert into leasehold.version (version) values (20261201000008);
    end if;

    perform pg_catalog.set_config('search_path', callers_path, true);
end
$migration$;
