-- What the torture run adds to the database: a record of every change of a lock, made while the row is
-- locked, registers to write to, and a register without a fence.
create schema torture;

-- Microseconds on a clock that no step moves.
create function torture.up() returns bigint language sql volatile as
$$ select (split_part(pg_catalog.pg_read_file('/proc/uptime'), ' ', 1)::numeric * 1000000)::bigint $$;

create table torture.audit (
    number bigint generated always as identity primary key,
    up     bigint not null,
    at     bigint not null,
    name   text   not null,
    old    leasehold.locks,
    new    leasehold.locks,
    overtaken integer not null
);

alter table leasehold.waiters add column stood_at bigint default torture.up();

create function torture.record() returns trigger language plpgsql as $$
declare
    overtaken integer := 0;
begin
    if tg_op = 'UPDATE' and new.owner is not null and new.fence <> old.fence then
        -- For how long the one who was passed over has stood in line, in milliseconds.
        select coalesce((torture.up() - min(w.stood_at)) / 1000, 0) into overtaken
        from leasehold.live_waiters as l join leasehold.waiters as w on w.owner = l.owner
        where l.name = new.name and l.owner <> new.owner
            and l.ticket < coalesce((select m.ticket from leasehold.waiters as m where m.owner = new.owner), 9e18);
    end if;
    insert into torture.audit (up, at, name, old, new, overtaken)
    values (
        torture.up(), (extract(epoch from clock_timestamp()) * 1000000)::bigint, coalesce(new.name, old.name),
        case when tg_op <> 'INSERT' then old end, case when tg_op <> 'DELETE' then new end, overtaken
    );
    return null;
end
$$;

create trigger record after insert or update or delete on leasehold.locks
    for each row execute function torture.record();

create table torture.registers (name text primary key, number bigint not null, value bigint not null);
create table torture.written (
    name text not null, number bigint not null, fence bigint not null, current bigint not null,
    id text not null, write bigint not null, primary key (name, number)
);

create function torture.write(name text, fence bigint, id text, write bigint, value bigint)
    returns void language plpgsql as $$
#variable_conflict use_column
declare
    given bigint;
begin
    -- What is judged by whether it lasts is not to depend on what the session waits for.
    perform set_config('synchronous_commit', 'on', true);
    insert into torture.registers as r (name, number, value) values ($1, 1, $5)
    on conflict (name) do update set number = r.number + 1, value = excluded.value
    returning r.number into given;
    insert into torture.written (name, number, fence, current, id, write)
    values ($1, given, $2, coalesce((select l.fence from leasehold.locks as l where l.name = $1), 0), $3, $4);
end
$$;

create table torture.control (number bigint not null, value bigint not null);
insert into torture.control values (0, 0);
