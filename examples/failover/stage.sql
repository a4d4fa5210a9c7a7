-- What the failover run adds to the database: a record of every grant, made while the row is locked, with
-- the timeline of the server that made it; and registers whose fenced writes are numbered.
create schema failover;

create table failover.grants (
    token    bigint not null,
    name     text   not null,
    timeline text   not null
);

create function failover.record() returns trigger language plpgsql as $$
begin
    if new.owner is not null and (tg_op = 'INSERT' or new.fence <> old.fence) then
        insert into failover.grants (token, name, timeline)
        values (new.fence, new.name, left(pg_walfile_name(pg_current_wal_lsn()), 8));
    end if;
    return null;
end
$$;

create trigger record after insert or update on leasehold.locks
    for each row execute function failover.record();

create table failover.registers (name text primary key, number bigint not null);
create table failover.writes (
    name    text   not null,
    number  bigint not null,
    token   bigint not null,
    current bigint,
    id      bigint not null,
    primary key (name, number)
);

create function failover.write(name text, token bigint, id bigint) returns void language plpgsql as $$
#variable_conflict use_column
declare
    given bigint;
begin
    insert into failover.registers as r (name, number) values ($1, 1)
    on conflict (name) do update set number = r.number + 1
    returning r.number into given;
    insert into failover.writes (name, number, token, current, id)
    values ($1, given, $2, (select l.fence from leasehold.locks as l where l.name = $1), $3);
end
$$;
