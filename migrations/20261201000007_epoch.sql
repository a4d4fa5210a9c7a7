-- Adds the epoch: fencing tokens go on rising where the sequence has forgotten what it gave out,
-- after a promotion, a restore or a copy to another server.
--
-- Additive: older clients keep working. Callers of acquire are safe whatever their language.
do $migration$
declare
    callers_path constant pg_catalog.text := pg_catalog.current_setting('search_path');
begin
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

    if (select coalesce(max(v.version), 0) from leasehold.version as v) < 20261201000007 then
        create table leasehold.epoch (
            one      boolean not null default true,
            timeline text,
            system   bigint,
            floor    bigint  not null,

            constraint epoch_pkey primary key (one),
            constraint epoch_one check (one)
        ) with (fillfactor = 50);

        comment on table leasehold.epoch is
            'Whose history the tokens belong to. Not the present server''s: the sequence jumps before the next token.';
        comment on column leasehold.epoch.timeline is
            'As the names of its WAL files begin; null where the server does not tell.';
        comment on column leasehold.epoch.system is
            'The system identifier of the cluster; null where the server does not tell.';
        comment on column leasehold.epoch.floor is
            'Where the sequence began or last jumped to: it is never below.';

        create table leasehold.epoch_history (
            id            bigint      generated always as identity,
            entered_at    timestamptz not null default clock_timestamp(),
            reason        text        not null,
            from_timeline text,
            to_timeline   text,
            from_system   bigint,
            to_system     bigint,
            from_token    bigint      not null,
            to_token      bigint      not null,

            constraint epoch_history_pkey primary key (id)
        );

        comment on table leasehold.epoch_history is
            'Every jump of the token sequence: when, why, from what and to what.';

        create or replace function leasehold.present_timeline()
            returns text
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        begin
            -- The control file would tell it late: it is written at the end of recovery.
            return left(pg_walfile_name(pg_current_wal_lsn()), 8);
        exception
            -- Some managed services have no such functions, or do not let them be called.
            when undefined_function or insufficient_privilege or feature_not_supported then
                return null;
        end
        $$;

        comment on function leasehold.present_timeline() is
            'The timeline of this server; null where it does not tell.';

        create or replace function leasehold.present_system()
            returns bigint
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        begin
            return c.system_identifier from pg_control_system() as c;
        exception
            when undefined_function or insufficient_privilege or feature_not_supported then
                return null;
        end
        $$;

        comment on function leasehold.present_system() is
            'The system identifier of this server; null where it does not tell.';

        insert into leasehold.epoch (timeline, system, floor)
        select leasehold.present_timeline(), leasehold.present_system(), s.last_value
        from leasehold.locks_fence_seq as s;

        create or replace function leasehold.jump(reason text, above bigint)
            returns bigint
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
            set jit = off
        as $$
        declare
            -- What a lagging standby can have lost, were the clock wrong: 67 million grants.
            stride  constant bigint := 1::bigint << 26;
            before  leasehold.epoch;
            present bigint;
            target  numeric;
        begin
            -- Missing after a copy of the schema alone.
            insert into leasehold.epoch (floor)
            values (0)
            on conflict on constraint epoch_pkey do nothing;

            -- Whoever has waited for another to make it comes after that one's jump.
            select e.* into before from leasehold.epoch as e where e.one for update;
            select s.last_value into present from leasehold.locks_fence_seq as s;

            -- The clock covers histories that cannot know of each other.
            target := greatest(
                present::numeric + stride,
                coalesce(jump.above, 0)::numeric + stride,
                coalesce((select max(l.fence) from leasehold.locks as l), 0)::numeric + stride,
                floor(extract(epoch from clock_timestamp()) * 1000000)
            );

            if target >= 9223372036854775807 then
                raise exception 'no fencing token is left above %', present
                    using errcode = 'sequence_generator_limit_exceeded',
                        hint = 'See the column fence of leasehold.locks for what is in use.';
            end if;

            perform setval('leasehold.locks_fence_seq', target::bigint, true);

            update leasehold.epoch as e
            set timeline = leasehold.present_timeline(),
                system = leasehold.present_system(),
                floor = target::bigint
            where e.one;

            insert into leasehold.epoch_history
                (reason, from_timeline, to_timeline, from_system, to_system, from_token, to_token)
            select jump.reason, before.timeline, e.timeline, before.system, e.system, present, e.floor
            from leasehold.epoch as e;

            perform leasehold.make_durable();

            raise warning 'fencing tokens go on from %, above %: %', target, present, jump.reason
                using hint = 'See leasehold.epoch_history.';

            return target::bigint;
        end
        $$;

        comment on function leasehold.jump(text, bigint) is
            'Lets the sequence jump, above the given token too, and writes it down. For callers that hold the row of the epoch.';

        create or replace function leasehold.enter_epoch(above bigint default null)
            returns boolean
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
            set jit = off
        as $$
        declare
            reason text;
        begin
            -- Conflicts with another jump alone: whoever waits here finds it done.
            perform
            from leasehold.epoch as e
            where e.one
            for update;

            select case
                when e.floor is null
                    then 'there was no epoch: the schema was copied without its data'
                when e.timeline is distinct from leasehold.present_timeline()
                    then 'another timeline: the server was promoted or restored'
                when e.system is distinct from leasehold.present_system()
                    then 'another system identifier: the data was copied to another server'
                when s.last_value < e.floor
                    then 'the sequence was set back'
                when s.last_value < enter_epoch.above or (s.last_value = enter_epoch.above and not s.is_called)
                    then 'the sequence was behind a token in use'
            end
            into reason
            from leasehold.locks_fence_seq as s
                left join leasehold.epoch as e on e.one;

            if reason is null then
                return false;
            end if;

            perform leasehold.jump(reason, enter_epoch.above);
            return true;
        end
        $$;

        comment on function leasehold.enter_epoch(bigint) is
            'Lets the sequence jump if this server is not the one whose history the tokens belong to, or the sequence is behind. Returns whether it did.';

        create or replace function leasehold.advance_epoch()
            returns bigint
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        begin
            -- Conflicts with another jump alone.
            perform
            from leasehold.epoch as e
            where e.one
            for update;

            return leasehold.jump('an operator asked for it', null);
        end
        $$;

        comment on function leasehold.advance_epoch() is
            'For an operator who restored by means that cannot be seen, a rolled-back volume for instance: the next token is above all that can have been given out. Returns what it is above of.';

        create or replace function leasehold.check()
            returns table (finding text, remedy text)
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        begin
            return query
            select f.finding, f.remedy
            from pg_sequence as q
                cross join leasehold.locks_fence_seq as s
                left join leasehold.epoch as e on e.one
                cross join lateral (
                    values
                        (
                            e.floor is null,
                            'there is no epoch: the schema was copied without its data',
                            'select leasehold.advance_epoch()'
                        ),
                        (
                            q.seqcache <> 1,
                            format('the token sequence has cache %s: sessions give out tokens out of order', q.seqcache),
                            'alter sequence leasehold.locks_fence_seq cache 1'
                        ),
                        (
                            q.seqcycle,
                            'the token sequence begins anew at its end: tokens would be given out twice',
                            'alter sequence leasehold.locks_fence_seq no cycle'
                        ),
                        (
                            q.seqincrement <> 1,
                            format('the token sequence goes by steps of %s', q.seqincrement),
                            'alter sequence leasehold.locks_fence_seq increment by 1'
                        ),
                        (
                            q.seqmax <> 9223372036854775807,
                            format('the token sequence ends at %s', q.seqmax),
                            'alter sequence leasehold.locks_fence_seq no maxvalue'
                        ),
                        (
                            s.last_value < e.floor,
                            format('the token sequence was set back to %s, from above %s', s.last_value, e.floor),
                            'select leasehold.advance_epoch()'
                        ),
                        (
                            e.floor is not null
                                and not pg_is_in_recovery()
                                and e.timeline is distinct from leasehold.present_timeline(),
                            'the tokens belong to the history of another timeline',
                            'select leasehold.advance_epoch()'
                        ),
                        (
                            e.floor is not null and e.system is distinct from leasehold.present_system(),
                            'the tokens belong to the history of another server',
                            'select leasehold.advance_epoch()'
                        ),
                        (
                            e.floor is not null and (e.timeline is null or e.system is null),
                            'the server does not tell its timeline or its system identifier: a promotion or a restore is not noticed',
                            'select leasehold.advance_epoch() after each'
                        )
                ) as f (applies, finding, remedy)
            where q.seqrelid = 'leasehold.locks_fence_seq'::regclass
                and f.applies;
        end
        $$;

        comment on function leasehold.check() is
            'What is wrong with the token sequence or its epoch, and the remedy of each. No row: nothing.';

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
        as $$
        declare
            term        interval;
            locked_at   timestamptz;
            is_foreign  boolean;
            timeline    text;
            highest     bigint;
            has_queue   boolean;
            is_promised boolean := false;
            is_changing boolean := false;
            my_ticket   bigint;
            my_place    integer := 0;
            present     leasehold.locks;
        begin
            if leasehold.complaint(acquire.lock_name, acquire.owner, acquire.ttl, acquire.holder) is not null then
                perform leasehold.reject_argument(
                    acquire.lock_name,
                    leasehold.complaint(acquire.lock_name, acquire.owner, acquire.ttl, acquire.holder)
                );
            end if;

            if acquire.client is not null then
                perform leasehold.check_client_ttl(acquire.client_ttl);
            end if;

            term := make_interval(secs => extract(epoch from acquire.ttl)::double precision);

            -- Looked at before the row is locked: a latecomer who locks first and looks second is in
            -- the way of the one who was just woken.
            has_queue := exists (select from leasehold.waiters as w where w.name = acquire.lock_name);
            if has_queue then
                is_promised := exists (
                    select
                    from leasehold.live_waiters as w
                    where w.name = acquire.lock_name
                        and w.owner <> acquire.owner
                        and w.ticket < coalesce(
                            (select m.ticket from leasehold.waiters as m where m.owner = acquire.owner),
                            w.ticket + 1
                        )
                );
            end if;

            for attempt in 1..2 loop
                -- The filter runs before the lock, so a held name is a plain read. For update
                -- conflicts with every other lock of the row, key-share included: a plain
                -- update would slip under a fenced transaction's.
                select
                    e.floor is null,
                    e.timeline,
                    greatest(l.fence, e.floor - 1)
                into is_foreign, timeline, highest
                from leasehold.locks as l
                    left join leasehold.epoch as e on e.one
                where l.name = acquire.lock_name
                    and (l.owner is null or l.expires_at <= clock_timestamp())
                    and not is_promised
                for update of l skip locked;

                if found then
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
                    where l.name = acquire.lock_name;

                    -- As make_durable does, without the price of a call.
                    if current_setting('synchronous_commit') in ('off', 'local', 'remote_write') then
                        perform set_config('synchronous_commit', 'on', true);
                    end if;

                    if has_queue then
                        delete from leasehold.waiters as w
                        where w.owner = acquire.owner;
                    end if;

                    acquire.outcome := 'granted';
                    acquire.expires_in := term;
                    return;
                end if;

                -- The second look, which decides to sleep. Whether the queue is just changing is
                -- asked before the row is read: a release that has looked for waiters too early to
                -- see this one has either said so, or is seen below.
                if acquire.client is not null then
                    select w.ticket
                    into my_ticket
                    from leasehold.waiters as w
                    where w.owner = acquire.owner;

                    if found then
                        my_place := leasehold.ahead(acquire.lock_name, my_ticket);
                        is_changing := my_place <= 1 and leasehold.is_changing(acquire.lock_name);
                    end if;
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

            if acquire.client is not null and my_ticket is null then
                my_ticket := leasehold.stand_in_line(
                    acquire.lock_name, acquire.owner, acquire.client, acquire.client_ttl
                );
                my_place := leasehold.ahead(acquire.lock_name, my_ticket);
            elsif acquire.client is null and has_queue then
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

            if present.name is null or is_changing then
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
        as $$
        declare
            callers_wait constant text := current_setting('lock_timeout');
            missing      text[];
            eligible     uuid[];
            granted      uuid[] := '{}';
            not_granted  text[] := '{}';
            changing     uuid[] := '{}';
            missed       text;
            is_foreign   boolean;
            timeline     text;
            floor        bigint;
            highest      bigint;
            lowest       bigint;
            locked_at    timestamptz;
        begin
            perform leasehold.reject_argument(r.name, leasehold.complaint(r.name, r.owner, r.ttl, r.holder))
            from unnest(
                acquire_many.lock_names, acquire_many.owners, acquire_many.ttls, acquire_many.holders
            ) as r (name, owner, ttl, holder)
            where leasehold.complaint(r.name, r.owner, r.ttl, r.holder) is not null;

            if exists (select from unnest(acquire_many.clients) as r (client) where r.client is not null) then
                perform leasehold.check_client_ttl(acquire_many.client_ttl);
            end if;

            -- Sorted, so that two clients which insert the same new names cannot deadlock.
            missing := array(
                select distinct r.name collate "C"
                from unnest(acquire_many.lock_names) as r (name)
                where not exists (select from leasehold.locks as l where l.name = r.name)
                order by 1
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

            -- As in acquire: filter, the queue too, then the lock that conflicts with key-share too.
            eligible := array(
                select r.owner
                from unnest(acquire_many.lock_names, acquire_many.owners) as r (name, owner)
                    join leasehold.locks as l on l.name = r.name
                where (l.owner is null or l.expires_at <= clock_timestamp())
                    and not exists (
                        select
                        from leasehold.live_waiters as w
                        where w.name = l.name
                            and w.owner <> r.owner
                            and w.ticket < coalesce(
                                (select m.ticket from leasehold.waiters as m where m.owner = r.owner),
                                w.ticket + 1
                            )
                    )
                for update of l skip locked
            );

            if cardinality(eligible) > 0 then
                -- As in acquire, for all of them before the first token is drawn.
                select e.floor, e.timeline
                into floor, timeline
                from leasehold.epoch as e
                where e.one;

                select greatest(max(l.fence), floor - 1)
                into highest
                from leasehold.locks as l
                where l.name = any (acquire_many.lock_names);

                -- Read from the sequence as from a table, it would be scanned: enable_seqscan makes that
                -- so dear that the plan is compiled each time.
                is_foreign := floor is null
                    or coalesce(pg_sequence_last_value('leasehold.locks_fence_seq'), 0) < highest;

                if timeline is not null and not is_foreign then
                    is_foreign := timeline <> left(pg_walfile_name(pg_current_wal_lsn()), 8);
                end if;

                if is_foreign then
                    perform leasehold.enter_epoch(highest);
                end if;

                for attempt in 1..2 loop
                    locked_at := clock_timestamp();

                    -- Of several that ask for one name, the first that was named.
                    with updated as (
                        update leasehold.locks as l
                        set owner = r.owner,
                            holder = r.holder,
                            ttl = make_interval(secs => extract(epoch from r.ttl)::double precision),
                            fence = nextval('leasehold.locks_fence_seq'),
                            acquired_at = locked_at,
                            expires_at = locked_at + make_interval(secs => extract(epoch from r.ttl)::double precision)
                        from (
                            select distinct on (u.name) u.name, u.owner, u.ttl, u.holder
                            from unnest(
                                acquire_many.lock_names, acquire_many.owners, acquire_many.ttls, acquire_many.holders
                            ) with ordinality as u (name, owner, ttl, holder, place)
                            where u.owner = any (eligible)
                            order by u.name, u.place
                        ) as r
                        where l.name = r.name
                        returning l.owner, l.fence
                    )
                    select coalesce(array_agg(u.owner), '{}'), min(u.fence)
                    into granted, lowest
                    from updated as u;

                    exit when lowest > highest;

                    -- As in acquire; or the sequence has begun anew among these.
                    if not leasehold.enter_epoch(highest) then
                        perform leasehold.jump('a session kept tokens that are behind one in use', highest);
                    end if;
                end loop;

                perform leasehold.make_durable();

                delete from leasehold.waiters as w
                where w.owner = any (granted);
            end if;

            if cardinality(granted) < cardinality(acquire_many.owners) then
                not_granted := acquire_many.lock_names;

                -- As in acquire: first whether a queue is just changing, then the rows.
                changing := array(
                    select r.owner
                    from unnest(acquire_many.owners, acquire_many.clients) as r (owner, client)
                        join leasehold.places(acquire_many.lock_names) as p on p.owner = r.owner
                    where r.client is not null
                        and p.ahead <= 1
                        and leasehold.is_changing(p.name)
                );

                perform leasehold.stand_in_line(s.name, s.owner, s.client, acquire_many.client_ttl)
                from (
                    select r.name, r.owner, r.client
                    from unnest(acquire_many.lock_names, acquire_many.owners, acquire_many.clients)
                        with ordinality as r (name, owner, client, place)
                    where r.client is not null
                        and not exists (
                            select
                            from leasehold.locks as l
                            where l.name = r.name
                                and l.owner = r.owner
                                and l.expires_at > clock_timestamp()
                        )
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
            from unnest(acquire_many.lock_names, acquire_many.owners, acquire_many.clients) as r (name, owner, client)
                left join leasehold.locks as l on l.name = r.name
                left join leasehold.places(not_granted) as p on p.owner = r.owner
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

        revoke all on all functions in schema leasehold from public;

        insert into leasehold.version (version) values (20261201000007);
    end if;

    perform pg_catalog.set_config('search_path', callers_path, true);
end
$migration$;
