-- Describes the schema leasehold as text, one fact a line, the same on every major version.
-- Run it with an empty search_path, so that every name is written with its schema.
with relation as (
    select c.*
    from pg_class as c
    where c.relnamespace = 'leasehold'::regnamespace
        and c.relname not like '\_sqlx\_migrations%'
),
function as (
    select p.oid::regprocedure::text as signature, p.*
    from pg_proc as p
    where p.pronamespace = 'leasehold'::regnamespace
),
fact (part, object, place, line) as (
    select 1, ''::text, 0, 'schema leasehold'

    union all
    select 2, r.relname, 0, format(
        '%s %s persistence %s access %s%s',
        case r.relkind when 'r' then 'table' when 'v' then 'view' when 'S' then 'sequence' when 'i' then 'index'
            else r.relkind::text end,
        r.relname,
        -- The sequence of an unlogged table's identity is logged until PostgreSQL 14.
        case when r.relname = 'waiters_ticket_seq' then '-' else r.relpersistence::text end,
        coalesce(a.amname, 'none'),
        ' with (' || array_to_string(r.reloptions, ', ') || ')'
    )
    from relation as r
        left join pg_am as a on a.oid = r.relam

    union all
    select 2, r.relname, a.attnum, format(
        '    %s %s%s%s%s%s',
        a.attname,
        format_type(a.atttypid, a.atttypmod),
        ' collate ' || case when a.attcollation <> t.typcollation then quote_ident(o.collname) end,
        case when a.attnotnull then ' not null' end,
        ' default ' || pg_get_expr(d.adbin, d.adrelid),
        ' -- ' || col_description(r.oid, a.attnum)
    )
    from relation as r
        join pg_attribute as a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
        join pg_type as t on t.oid = a.atttypid
        left join pg_collation as o on o.oid = a.attcollation
        left join pg_attrdef as d on d.adrelid = r.oid and d.adnum = a.attnum
    where r.relkind in ('r', 'v')

    union all
    select 2, r.relname, 2001, format('    constraint %s %s', c.conname, pg_get_constraintdef(c.oid))
    from relation as r
        join pg_constraint as c on c.conrelid = r.oid
    -- Not null has rows of its own since PostgreSQL 18.
    where c.contype <> 'n'

    union all
    select 2, r.relname, 2002, '    trigger ' || pg_get_triggerdef(t.oid)
    from relation as r
        join pg_trigger as t on t.tgrelid = r.oid and not t.tgisinternal

    union all
    select 2, r.relname, 2003, '    ' || pg_get_indexdef(r.oid)
    from relation as r
    where r.relkind = 'i'

    union all
    select 2, r.relname, 2003, format(
        '    as %s increment %s from %s to %s cache %s %s owned by %s',
        format_type(s.seqtypid, null), s.seqincrement, s.seqmin, s.seqmax, s.seqcache,
        case when s.seqcycle then 'cycle' else 'no cycle' end,
        (
            select d.refobjid::regclass || '.' || a.attname
            from pg_depend as d
                join pg_attribute as a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
            where d.objid = r.oid and d.deptype = 'a'
        )
    )
    from relation as r
        join pg_sequence as s on s.seqrelid = r.oid

    union all
    select 2, r.relname, 2003, '    as ' || btrim(regexp_replace(
        -- Since PostgreSQL 16 a view of one table is written without the table's alias.
        regexp_replace(pg_get_viewdef(r.oid), '\m[a-z]\.', '', 'g'), '\s+', ' ', 'g'
    ))
    from relation as r
    where r.relkind = 'v'

    union all
    select 3, f.signature, 0, format('function %s(%s)', f.proname, pg_get_function_arguments(f.oid))
    from function as f

    union all
    select 3, f.signature, 1, '    returns ' || coalesce(pg_get_function_result(f.oid), '')
    from function as f

    union all
    select 3, f.signature, 2, format(
        '    language %s %s parallel %s%s security %s%s',
        l.lanname,
        case f.provolatile when 'v' then 'volatile' when 's' then 'stable' else 'immutable' end,
        case f.proparallel when 'u' then 'unsafe' when 's' then 'safe' else 'restricted' end,
        case when f.proisstrict then ' strict' else '' end,
        case when f.prosecdef then 'definer' else 'invoker' end,
        ' set ' || array_to_string(f.proconfig, ' set ')
    )
    from function as f
        join pg_language as l on l.oid = f.prolang

    union all
    select 3, f.signature, 3, '    body ' || case
        when f.prosqlbody is null then 'md5 ' || md5(f.prosrc)
        else regexp_replace(pg_get_function_sqlbody(f.oid), '\s+', ' ', 'g')
    end
    from function as f

    union all
    select 4, '', 0, 'version ' || v.version
    from leasehold.version as v

    -- What anybody but the owner may do.
    union all
    select o.part, o.object, 3001, format('    grant %s to %s', g.privilege_type, coalesce(nullif(g.grantee, 0)::regrole::text, 'public'))
    from (
        select 1, ''::text, coalesce(n.nspacl, acldefault('n', n.nspowner)), n.nspowner
        from pg_namespace as n
        where n.nspname = 'leasehold'
        union all
        select 2, r.relname, coalesce(r.relacl, acldefault(case r.relkind when 'S' then 's' else 'r' end::"char", r.relowner)), r.relowner
        from relation as r
        where r.relkind <> 'i'
        union all
        select 3, f.signature, coalesce(f.proacl, acldefault('f', f.proowner)), f.proowner
        from function as f
    ) as o (part, object, acl, owner)
        cross join lateral aclexplode(o.acl) as g
    where g.grantee <> o.owner

    union all
    select o.part, o.object, 3002, '    -- ' || o.remark
    from (
        select 1, ''::text, obj_description('leasehold'::regnamespace, 'pg_namespace')
        union all
        select 2, r.relname, obj_description(r.oid, 'pg_class')
        from relation as r
        union all
        select 3, f.signature, obj_description(f.oid, 'pg_proc')
        from function as f
    ) as o (part, object, remark)
    where o.remark is not null
)
select string_agg(f.line, E'\n' order by f.part, f.object collate "C", f.place, f.line collate "C") || E'\n'
from fact as f
