-- Adds the queue: waiting is first come, first served, and the first in line is told when its turn
-- has come.
--
-- Additive: older clients keep working. They never stand in line, and never overtake it.
--
-- Who waits registers, and looks again once that is committed; only then it may sleep. A release
-- looks for waiters last of all. What is left between the two, a release that has looked and not
-- yet committed, shows as a mark that the second look asks for.
--
-- Functions that read the queue set enable_seqscan = off: a session that plans while the two
-- tables are empty would scan them, and keep that plan when a thousand waiters have come and gone
-- (measured with 50,000 dead rows: 2.4 ms instead of 0.01).
do $migration$
declare
    callers_path constant pg_catalog.text := pg_catalog.current_setting('search_path');
begin
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

    if (select coalesce(max(v.version), 0) from leasehold.version as v) < 20261201000005 then
        -- Unlogged: a crash empties both, and whoever waits queues again.
        create unlogged table leasehold.clients (
            client     uuid        not null,
            expires_at timestamptz not null,

            constraint clients_pkey primary key (client)
        ) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

        comment on table leasehold.clients is
            'One row per client that waits or lately has. Its waiters count while it is alive: until expires_at.';

        create unlogged table leasehold.waiters (
            name   text   collate "C" not null,
            ticket bigint generated always as identity,
            owner  uuid   not null,
            client uuid   not null,

            constraint waiters_pkey primary key (name, ticket),
            constraint waiters_owner_key unique (owner)
        ) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

        create index waiters_client_idx on leasehold.waiters (client);

        comment on table leasehold.waiters is
            'Who stands in line for a name, in the order of the tickets.';

        create view leasehold.live_waiters as
        select
            w.name,
            w.ticket,
            w.owner,
            w.client
        from leasehold.waiters as w
        -- Not a join: there is one way to plan this, through the index of the names.
        where (select c.expires_at from leasehold.clients as c where c.client = w.client) > clock_timestamp();

        comment on view leasehold.live_waiters is
            'The waiters whose client is alive. The others are passed over, and swept in time.';

        create or replace function leasehold.channel(client uuid)
            returns text
            language sql
            immutable
            parallel safe
        begin atomic
            select 'leasehold_' || left(encode(sha256(uuid_send(channel.client)), 'hex'), 40);
        end;

        comment on function leasehold.channel(uuid) is
            'Where a client listens. It does not tell the client, whose waiters anybody who knows it could keep alive.';

        create or replace function leasehold.mark(lock_name text)
            returns bigint
            language sql
            immutable
            parallel safe
        begin atomic
            select (1279806532::bigint << 32) | (hashtext(mark.lock_name) & 63);
        end;

        comment on function leasehold.mark(text) is
            'The key of the advisory lock that marks the queue of the name as changing. 64 in all, so that no batch exhausts the lock table.';

        create or replace function leasehold.mark_changing(lock_name text)
            returns boolean
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        begin
            -- Never waits. Conflicts with nothing but is_changing, which takes the lock for a moment;
            -- should it be taken for longer, by somebody else, the heartbeat wakes whom it must.
            for attempt in 1..100 loop
                exit when pg_try_advisory_xact_lock_shared(leasehold.mark(mark_changing.lock_name));
            end loop;
            return true;
        end
        $$;

        comment on function leasehold.mark_changing(text) is
            'Marks the queue of the name as changing until the transaction ends.';

        create or replace function leasehold.is_changing(lock_name text)
            returns boolean
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        begin
            -- Conflicts with every mark. Taken and given back at once, in one expression.
            return not (
                pg_try_advisory_lock(leasehold.mark(is_changing.lock_name))
                and pg_advisory_unlock(leasehold.mark(is_changing.lock_name))
            );
        end
        $$;

        comment on function leasehold.is_changing(text) is
            'Whether a release, a break or a leave is under way that may have looked for waiters already.';

        create or replace function leasehold.wake(lock_name text)
            returns boolean
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
            set enable_seqscan = off
        as $$
        begin
            -- Where the server's notification queue is almost full, a notify would undo the release
            -- at its commit; the heartbeat wakes instead.
            perform pg_notify(leasehold.channel(w.client), w.ticket::text)
            from (
                select f.client, f.ticket
                from leasehold.live_waiters as f
                where f.name = wake.lock_name
                order by f.ticket
                limit 1
            ) as w
            where pg_notification_queue_usage() < 0.9;

            return found;
        end
        $$;

        comment on function leasehold.wake(text) is
            'Tells the client of the first in line that its turn may have come.';

        create or replace function leasehold.ahead(lock_name text, ticket bigint)
            returns integer
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
            set enable_seqscan = off
        as $$
        begin
            return count(*)
            from leasehold.live_waiters as w
            where w.name = ahead.lock_name
                and w.ticket < coalesce(ahead.ticket, w.ticket + 1);
        end
        $$;

        comment on function leasehold.ahead(text, bigint) is
            'How many live waiters are ahead of the ticket; without one, how many there are.';

        create or replace function leasehold.places(lock_names text[])
            returns table (name text, owner uuid, ticket bigint, ahead integer)
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
            set enable_seqscan = off
        as $$
        begin
            return query
            select
                w.name,
                w.owner,
                w.ticket,
                (count(*) filter (where w.is_alive) over before)::integer
            from (
                select
                    v.*,
                    (select c.expires_at from leasehold.clients as c where c.client = v.client) > clock_timestamp() as is_alive
                from leasehold.waiters as v
                where v.name = any (places.lock_names)
            ) as w
            window before as (
                partition by w.name
                order by w.ticket
                rows between unbounded preceding and 1 preceding
            );
        end
        $$;

        comment on function leasehold.places(text[]) is
            'Everybody in line for these names, with how many live waiters are ahead: ahead for a set.';

        create or replace function leasehold.check_client_ttl(client_ttl interval)
            returns void
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
        as $$
        begin
            if check_client_ttl.client_ttl not between interval '100 milliseconds' and interval '1 hour' then
                raise exception 'a client ttl of % is out of range', check_client_ttl.client_ttl
                    using errcode = 'LH002',
                        hint = 'A client ttl lies between 100 ms and 1 h.';
            end if;
        end
        $$;

        comment on function leasehold.check_client_ttl(interval) is
            'Raises LH002 when the ttl of a client is out of range. Null stands for the default.';

        create or replace function leasehold.keep_client(client uuid, client_ttl interval)
            returns void
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
            set enable_seqscan = off
        as $$
        declare
            term constant interval := make_interval(
                secs => extract(epoch from coalesce(keep_client.client_ttl, '3 seconds'))::double precision
            );
        begin
            -- Conflicts with the sweep, and with an older statement of the same client.
            update leasehold.clients as c
            set expires_at = clock_timestamp() + term
            where c.client = keep_client.client;

            if not found then
                insert into leasehold.clients (client, expires_at)
                values (keep_client.client, clock_timestamp() + term)
                on conflict on constraint clients_pkey do nothing;
            end if;
        end
        $$;

        comment on function leasehold.keep_client(uuid, interval) is
            'Keeps the client alive for another ttl, 3 s unless given.';

        create or replace function leasehold.stand_in_line(
            lock_name  text,
            owner      uuid,
            client     uuid,
            client_ttl interval
        )
            returns bigint
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
            set enable_seqscan = off
        as $$
        declare
            my_ticket bigint;
        begin
            -- One heartbeat row for all waiters of a client: it is written when half of its time is over.
            if not exists (
                select
                from leasehold.clients as c
                where c.client = stand_in_line.client
                    and c.expires_at > clock_timestamp() + coalesce(stand_in_line.client_ttl, '3 seconds') / 2
            ) then
                perform leasehold.keep_client(stand_in_line.client, stand_in_line.client_ttl);
            end if;

            insert into leasehold.waiters (name, owner, client)
            values (stand_in_line.lock_name, stand_in_line.owner, stand_in_line.client)
            on conflict on constraint waiters_owner_key do nothing
            returning ticket into my_ticket;

            return my_ticket;
        end
        $$;

        comment on function leasehold.stand_in_line(text, uuid, uuid, interval) is
            'Puts the owner at the end of the line and returns the ticket.';

        create or replace function leasehold.ticket(owner uuid)
            returns bigint
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
            set enable_seqscan = off
        as $$
        begin
            return w.ticket
            from leasehold.waiters as w
            where w.owner = ticket.owner;
        end
        $$;

        comment on function leasehold.ticket(uuid) is
            'The ticket of a waiter, by which its client is woken. Null: the owner does not wait.';

        create or replace function leasehold.leave(owner uuid)
            returns boolean
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
            set enable_seqscan = off
        as $$
        declare
            gone leasehold.waiters;
        begin
            select w.*
            into gone
            from leasehold.waiters as w
            where w.owner = leave.owner;

            if not found then
                return false;
            end if;

            perform leasehold.mark_changing(gone.name);

            delete from leasehold.waiters as w
            where w.owner = leave.owner;

            -- Whoever is first now has not been told, be the name free or due to run out.
            if leasehold.ahead(gone.name, gone.ticket) = 0 then
                perform leasehold.wake(gone.name);
            end if;

            return true;
        end
        $$;

        comment on function leasehold.leave(uuid) is
            'Leaves the line. When the first one leaves, the next is woken. Returns whether the owner stood in line.';

        create or replace function leasehold.heartbeat(client uuid, client_ttl interval, owners uuid[])
            returns table (
                owner      uuid,
                ticket     bigint,
                outcome    text,
                ahead      integer,
                expires_in interval,
                held_by    text,
                held_since timestamptz
            )
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
            set enable_seqscan = off
        as $$
        begin
            if heartbeat.client is null then
                raise exception 'the client is null'
                    using errcode = 'LH002',
                        hint = 'A client is a random uuid.';
            end if;
            perform leasehold.check_client_ttl(heartbeat.client_ttl);
            perform leasehold.keep_client(heartbeat.client, heartbeat.client_ttl);

            -- Of an acquire that came late, after its leave. Materialized: the planner evaluates first
            -- what it thinks cheaper, and nobody else may leave.
            return query
            with not_named as materialized (
                select w.owner, w.ticket
                from leasehold.waiters as w
                where w.client = heartbeat.client
                    and w.owner <> all (coalesce(heartbeat.owners, '{}'))
            )
            select null::uuid, n.ticket, 'left', null::integer, null::interval, null::text, null::timestamptz
            from not_named as n
            where leasehold.leave(n.owner);

            return query
            with mine as materialized (
                select
                    r.owner,
                    w.name,
                    w.ticket
                from unnest(heartbeat.owners) as r (owner)
                    left join leasehold.waiters as w on w.owner = r.owner and w.client = heartbeat.client
            ), lines as materialized (
                select
                    p.owner,
                    p.ahead
                from leasehold.places(array(select distinct m.name from mine as m)) as p
            )
            select
                m.owner,
                m.ticket,
                case
                    when m.ticket is null then 'unknown'
                    when q.ahead = 0 and (l.owner is null or l.expires_at <= clock_timestamp()) then 'try'
                    else 'wait'
                end,
                q.ahead,
                case when l.owner is not null then greatest(l.expires_at - clock_timestamp(), '0') end,
                l.holder,
                case when l.owner is not null then l.acquired_at end
            from mine as m
                left join lines as q on q.owner = m.owner
                left join leasehold.locks as l on l.name = m.name;
        end
        $$;

        comment on function leasehold.heartbeat(uuid, interval, uuid[]) is
            'Keeps a client and its waiters alive, and answers for each owner named: try, wait or unknown (queue again). Waiters of the client that are not named leave the line: left.';

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
            -- fenced transactions hold. A lease granted in the meantime is left alone: its
            -- renewal would find the row busy.
            perform
            from leasehold.locks as l
            where l.name = pinned.lock_name
                and (l.owner is null or l.expires_at <= clock_timestamp())
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
            'Whether an open fenced transaction, and nothing else, holds the row of the lock, which is free or has run out.';

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
                perform
                from leasehold.locks as l
                where l.name = acquire.lock_name
                    and (l.owner is null or l.expires_at <= clock_timestamp())
                    and not is_promised
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

        comment on function leasehold.acquire(text, uuid, interval, text, uuid, interval) is
            'Grants the lease when it is free or has run out and nobody waits ahead. Outcome: granted, held, pinned (by an open fenced transaction), busy (ask again) or queued: given a client, whoever is not granted the lease stands in line for it. Asked again by the same owner it answers with the same grant.';

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
                    returning l.owner
                )
                select coalesce(array_agg(u.owner), '{}')
                into granted
                from updated as u;

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

        comment on function leasehold.acquire_many(text[], uuid[], interval[], text[], uuid[], interval) is
            'acquire for a set: one row per request, known by its owner token. Of two requests for one name one is answered as held or queued.';

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
        as $$
        declare
            held_until timestamptz;
            is_marked  boolean;
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
            select
                l.acquired_at + make_interval(secs => extract(epoch from release.hold_at_least)::double precision),
                pg_try_advisory_xact_lock_shared(leasehold.mark(release.lock_name))
            into held_until, is_marked
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

            -- Somebody was just looking for the mark of this name, or of another that shares it.
            if not is_marked then
                perform leasehold.mark_changing(release.lock_name);
            end if;

            if release.hold_at_least > '0' and held_until > clock_timestamp() then
                -- Taken on by an owner that nobody knows. Without a ttl no fence passes.
                update leasehold.locks as l
                set owner = gen_random_uuid(),
                    ttl = null,
                    expires_at = held_until
                where l.name = release.lock_name;

                -- Whoever is first waits for another moment now.
                if release.wake and exists (select from leasehold.waiters as w where w.name = release.lock_name) then
                    perform leasehold.wake(release.lock_name);
                end if;

                perform leasehold.make_durable();
                return 'held_on';
            end if;

            update leasehold.locks as l
            set owner = null,
                holder = null,
                ttl = null,
                expires_at = clock_timestamp()
            where l.name = release.lock_name;

            if release.wake and exists (select from leasehold.waiters as w where w.name = release.lock_name) then
                perform leasehold.wake(release.lock_name);
            end if;

            return 'released';
        end
        $$;

        comment on function leasehold.release(text, uuid, interval, boolean) is
            'Frees the lease if the owner still holds it, and wakes the first in line. Outcome: released, held_on (until hold_at_least after the acquisition), not_owner or busy (ask again).';

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

            if release_many.wake then
                perform leasehold.mark_changing(r.name)
                from unnest(release_many.lock_names, release_many.owners) as r (name, owner)
                where r.owner = any (locked);
            end if;

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
                    -- Null without a hold: an acquisition may lie ahead of a clock that was stepped back.
                    case
                        when r.hold > '0'
                            then k.acquired_at + make_interval(secs => extract(epoch from r.hold)::double precision)
                    end as held_until
                from unnest(release_many.lock_names, release_many.owners, release_many.hold_at_least) as r (name, owner, hold)
                    join leasehold.locks as k on k.name = r.name
            ) as u
            where l.name = u.name
                and l.owner = u.owner
                and l.owner = any (locked)
            returning u.owner, case when l.owner is null then 'released' else 'held_on' end;

            if release_many.wake then
                perform leasehold.wake(r.name)
                from unnest(release_many.lock_names, release_many.owners) as r (name, owner)
                where r.owner = any (locked)
                    and exists (select from leasehold.waiters as w where w.name = r.name);
            end if;

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

            perform leasehold.mark_changing(break_lease.lock_name);

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

            perform leasehold.wake(break_lease.lock_name);
            perform leasehold.make_durable();
            return true;
        end
        $$;

        comment on function leasehold.break_lease(text) is
            'Ends whatever lease there is of that name and wakes the first in line; the holder is fenced out. Returns whether there was one.';

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

            -- For update conflicts with the heartbeat of a client that is back after all.
            with dead as materialized (
                select c.client
                from leasehold.clients as c
                where c.expires_at <= clock_timestamp() - interval '1 minute'
                for update skip locked
            ), left_behind as (
                delete from leasehold.waiters as w
                using dead as d
                where w.client = d.client
            )
            delete from leasehold.clients as c
            using dead as d
            where c.client = d.client;

            sweep.again_in := case when walked < sweep.batch then interval '1 minute' else interval '0' end;

            update leasehold.sweeps as g
            set swept_to = case when walked < sweep.batch then '' else page_end end,
                next_at = clock_timestamp() + sweep.again_in;
        end
        $$;

        comment on function leasehold.sweep(integer) is
            'One step of the sweep, which removes rows that have been free or run out for a minute, and clients dead for as long with their waiters. Call it again after again_in.';

        create or replace view leasehold.held as
        select
            l.name,
            l.holder,
            l.fence as fencing_token,
            l.acquired_at as held_since,
            l.expires_at - clock_timestamp() as expires_in,
            l.expires_at <= clock_timestamp() as expired,
            -- A standby has no queue, and may not look into an unlogged table.
            case when not pg_is_in_recovery() then leasehold.ahead(l.name, null) end as waiters
        from leasehold.locks as l
        where l.owner is not null;

        comment on view leasehold.held is
            'Who holds what, since when and for how long, and how many wait for it (null on a standby). Owner tokens are not in it.';

        revoke all on all functions in schema leasehold from public;

        insert into leasehold.version (version) values (20261201000005);
    end if;

    perform pg_catalog.set_config('search_path', callers_path, true);
end
$migration$;
