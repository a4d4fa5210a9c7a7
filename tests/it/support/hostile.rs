//! A schema that hijacks whoever has it in front of pg_catalog on the search path.

/// SQL that creates the schema `hostile`: what the schema's functions, sqlx and the client call,
/// under the same names and with other answers.
pub(crate) fn hostile_schema() -> String {
    let mut sql = String::from(
        "create schema hostile;
         grant usage on schema hostile to public;
         create domain hostile.text as pg_catalog.int4;
         create domain hostile.uuid as pg_catalog.int4;
         create domain hostile.interval as pg_catalog.int4;
         create domain hostile.timestamptz as pg_catalog.int4;
         create function hostile.clock_timestamp() returns pg_catalog.timestamptz
            language sql as $$ select pg_catalog.to_timestamp(0) $$;
         create function hostile.now() returns pg_catalog.timestamptz
            language sql as $$ select pg_catalog.to_timestamp(0) $$;
         create function hostile.nextval(pg_catalog.regclass) returns pg_catalog.int8
            language sql as $$ select 1::pg_catalog.int8 $$;
         create function hostile.setval(pg_catalog.regclass, pg_catalog.int8, pg_catalog.bool) returns pg_catalog.int8
            language sql as $$ select 1::pg_catalog.int8 $$;
         create function hostile.set_config(pg_catalog.text, pg_catalog.text, pg_catalog.bool) returns pg_catalog.text
            language sql as $$ select 'hijacked'::pg_catalog.text $$;
         create function hostile.current_setting(pg_catalog.text) returns pg_catalog.text
            language sql as $$ select 'hijacked'::pg_catalog.text $$;
         create function hostile.to_regclass(pg_catalog.text) returns pg_catalog.regclass
            language sql as $$ select null::pg_catalog.regclass $$;
         create function hostile.octet_length(pg_catalog.text) returns pg_catalog.int4
            language sql as $$ select 100000 $$;
         create function hostile.gen_random_uuid() returns pg_catalog.uuid
            language sql as $$ select '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid $$;
         create function hostile.unnest(anyarray) returns setof anyelement
            language sql as $$ select null where false $$;
         create function hostile.max(pg_catalog.int8) returns pg_catalog.int8
            language sql as $$ select 0::pg_catalog.int8 $$;",
    );
    for of in ["text", "uuid", "int8", "int4", "bool", "timestamptz", "interval"] {
        for (operator, name) in [
            ("=", "equal"),
            ("<=", "at_most"),
            (">=", "at_least"),
            ("<", "less"),
            (">", "more"),
        ] {
            sql += &format!(
                "create function hostile.{name}(pg_catalog.{of}, pg_catalog.{of}) returns pg_catalog.bool
                    language sql as $$ select false $$;
                 create operator hostile.{operator} (
                    leftarg = pg_catalog.{of}, rightarg = pg_catalog.{of}, function = hostile.{name}
                 );"
            );
        }
    }
    sql
}
