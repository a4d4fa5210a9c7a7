//! `leasehold run` while nothing fails: what the command gets, and what its caller does.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use leasehold_testkit::{eventually, signals};
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use super::{Running, children, ends, is_running, leasehold, output, text};
use crate::support::{SOON, TestDb, unique_name};

#[tokio::test]
async fn command_runs_under_the_lease_and_is_told_its_name_and_token() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let mut running = Running::start(
        &db.options,
        &name,
        &[],
        "echo $LEASEHOLD_NAME; read line; echo got $line",
    )
    .await;

    let held = db.client().inspect(&name).await.unwrap().expect("it is held");
    assert_eq!(held.fencing_token.get(), running.token);
    assert!(held.holder.unwrap().starts_with("sh@"));
    assert_eq!(running.line().await, name);
    running.stdin.as_mut().unwrap().write_all(b"a line\n").await.unwrap();

    assert_eq!(running.line().await, "got a line");
    assert_eq!(running.end().await, (0, String::new()));
    assert!(!db.is_held(&name).await, "it is released");
}

#[tokio::test]
async fn exit_code_is_the_commands_and_a_signal_counts_from_128() {
    let db = TestDb::shared().await;

    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -9 $$", 137),
    ] {
        let ended = output(leasehold(&db.options).args(["run", &unique_name!(), "--", "sh", "-c", script])).await;

        assert_eq!(ended.status.code(), Some(code), "{script}");
        assert_eq!((text(&ended.stdout), text(&ended.stderr)), ("", ""), "{script}");
    }
}

#[tokio::test]
async fn own_exit_codes_tell_why_the_command_did_not_run() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).holder("somebody").await.unwrap();
    let free_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nowhere = db.options.clone().port(free_port);
    let not_executable = std::env::temp_dir().join(format!("leasehold-{}", uuid::Uuid::new_v4()));
    std::fs::write(&not_executable, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&not_executable, std::fs::Permissions::from_mode(0o644)).unwrap();
    let not_executable = not_executable.to_str().unwrap();
    let free = unique_name!();

    for (at, arguments, code, said) in [
        (&db.options, &["run", &name, "--", "true"][..], 121, "held by somebody"),
        (
            &db.options,
            &["run", &name, "--wait", "200ms", "--", "true"],
            122,
            "held by somebody",
        ),
        (
            &nowhere,
            &["run", &free, "--", "true"],
            125,
            "no answer from the database",
        ),
        (&db.options, &["run", &free, "--", not_executable], 126, not_executable),
        (
            &db.options,
            &["run", &free, "--", "no-such-command"],
            127,
            "no-such-command",
        ),
        (&db.options, &["run", "", "--", "true"], 2, "invalid lock name"),
        (
            &db.options,
            &["run", &free, "--ttl", "1ms", "--", "true"],
            2,
            "invalid ttl",
        ),
        (
            &db.options,
            &["run", &free, "--grace", "16s", "--", "true"],
            2,
            "invalid grace",
        ),
        (&db.options, &["run", &free, "--ttl", "soon", "--", "true"], 2, "--ttl"),
        (&db.options, &["run", &free], 2, "CMD"),
    ] {
        let ended = output(leasehold(at).args(arguments)).await;

        let complaint = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {complaint}");
        assert!(complaint.contains(said), "{arguments:?}: {complaint}");
        assert_eq!(text(&ended.stdout), "", "{arguments:?}");
    }
    assert!(!db.is_held(&free).await, "what did not run holds nothing");
    std::fs::remove_file(not_executable).unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn password_is_never_said_nor_put_where_processes_are_listed() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let secret = "s3cr3t-pa55word";
    let options = db.options.clone().password(secret);

    let running = Running::start(&options, &name, &[], "read line; exit 0").await;
    for pid in [running.runner(), running.holder()] {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(!String::from_utf8_lossy(&arguments).contains(secret));
    }
    assert_eq!(running.end().await.0, 0);
    for url in [
        format!("mysql://user:{secret}@host/db"),
        format!("postgres://user:{secret}@host:notaport/db"),
        format!("postgres://user:{secret}@127.0.0.1:1/db"),
    ] {
        let ended = output(
            leasehold(&options)
                .env("DATABASE_URL", &url)
                .args(["run", &name, "--", "true"]),
        )
        .await;

        assert!([2, 125].contains(&ended.status.code().unwrap()), "{url}");
        assert!(!text(&ended.stderr).contains(secret), "{}", text(&ended.stderr));
    }
}

#[tokio::test]
async fn waits_for_its_turn_and_not_longer_than_it_was_told() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).await.unwrap();

    let (options, waiting) = (db.options.clone(), name.clone());
    let waiter =
        tokio::spawn(
            async move { Running::start(&options, &waiting, &["--wait", "forever"], "read line; exit 0").await },
        );
    eventually(SOON, "it stands in line", async || db.waiters(&name).await == 1).await;
    assert!(lease.is_held());
    lease.release().await.unwrap();

    assert_eq!(waiter.await.unwrap().end().await, (0, String::new()));
}

#[tokio::test]
async fn interrupted_wait_leaves_the_line_without_a_word() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).await.unwrap();
    let waiter = leasehold(&db.options)
        .args(["run", &name, "--wait", "1h", "--", "true"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually(SOON, "it stands in line", async || db.waiters(&name).await == 1).await;

    assert!(signals::term(waiter.id().unwrap()));
    let ended = waiter.wait_with_output().await.unwrap();

    assert_eq!(ended.status.code(), Some(143));
    assert_eq!(text(&ended.stderr), "");
    eventually(SOON, "it has left the line", async || db.waiters(&name).await == 0).await;
    lease.release().await.unwrap();
}

#[tokio::test]
async fn signals_are_passed_on_and_the_command_decides() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    // Not in `read`: a signal that comes just before a shell blocks in it is looked at when that returns.
    let script = "trap 'echo usr1' USR1; trap 'echo hup' HUP; trap 'echo term; exit 3' TERM
        echo ready; while :; do sleep 0.02; done";
    let mut running = Running::start(&db.options, &name, &[], script).await;
    assert_eq!(running.line().await, "ready");

    for (signal, said) in [("USR1", "usr1"), ("HUP", "hup"), ("TERM", "term")] {
        let sent = std::process::Command::new("kill")
            .args(["-s", signal, &running.runner().to_string()])
            .status();
        assert!(sent.unwrap().success());
        assert_eq!(running.line().await, said);
    }

    let (code, said) = running.end().await;
    assert_eq!(code, 3);
    assert!(!said.contains("leasehold"), "{said}");
    assert!(!db.is_held(&name).await);
}

#[tokio::test]
async fn closed_standard_input_is_an_empty_one() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let program = env!("CARGO_BIN_EXE_leasehold");

    let closed = format!("exec '{program}' run '{name}' -- cat <&-");
    let ended = output(leasehold(&db.options).args(["run", &unique_name!(), "--", "sh", "-c", &closed])).await;

    assert_eq!(
        (ended.status.code(), text(&ended.stdout)),
        (Some(0), ""),
        "{}",
        text(&ended.stderr)
    );
}

#[tokio::test]
async fn what_the_command_leaves_behind_ends_before_the_lease_does() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    // One in its group, one in a session of its own, one that does not listen.
    let script = "sleep 1000 & echo $!
        setsid sh -c 'echo $$; exec sleep 1000' &
        sh -c 'trap \"\" TERM; echo $$; sleep 1000 & wait' &
        read line; exit 0";
    let mut running = Running::start(&db.options, &name, &["--grace", "300ms"], script).await;
    let mut left = Vec::new();
    for _ in 0..3 {
        left.push(running.line().await.parse::<u32>().unwrap());
    }
    assert!(left.iter().all(|pid| is_running(*pid)));

    assert_eq!(running.end().await, (0, String::new()));

    assert!(!left.iter().any(|pid| is_running(*pid)), "{left:?}");
    assert!(!db.is_held(&name).await);
}

#[tokio::test]
async fn hold_at_most_ends_the_command_and_kills_what_does_not_listen() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let options = ["--hold-at-most", "2s", "--grace", "500ms"];
    let begun_at = Instant::now();

    let mut running = Running::start(
        &db.options,
        &name,
        &options,
        "trap 'echo term' TERM; while :; do sleep 0.05; done",
    )
    .await;
    let pid = running.pid;
    assert_eq!(running.line().await, "term");
    assert!(begun_at.elapsed() > Duration::from_secs(1));
    let (code, said) = running.end().await;

    assert_eq!(code, 123);
    assert!(said.contains("held for as long as was allowed"), "{said}");
    assert!(!is_running(pid));
    assert!(begun_at.elapsed() < Duration::from_secs(4));
}

#[tokio::test]
async fn hold_at_least_keeps_the_name_taken_after_a_short_command() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let once = ["run", &name, "--hold-at-least", "1h", "--", "echo", "once"];

    let first = output(leasehold(&db.options).args(once)).await;
    let second = output(leasehold(&db.options).args(once)).await;

    assert_eq!((first.status.code(), text(&first.stdout)), (Some(0), "once\n"));
    assert_eq!((second.status.code(), text(&second.stdout)), (Some(121), ""));
}

#[tokio::test]
async fn lease_is_renewed_for_as_long_as_the_command_runs() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let running = Running::start(&db.options, &name, &["--ttl", "2s"], "read line; exit 0").await;

    eventually(SOON, "it is renewed for more than two ttl", async || {
        let lasts: f64 = sqlx::query_scalar(
            "select extract(epoch from expires_at - acquired_at)::float8 from leasehold.locks where name = $1",
        )
        .bind(&name)
        .fetch_one(&db.pool)
        .await
        .unwrap();
        lasts > 6.0
    })
    .await;

    let held = db.client().inspect(&name).await.unwrap().expect("it is held");
    assert_eq!((held.fencing_token.get(), held.is_expired), (running.token, false));
    assert_eq!(running.end().await, (0, String::new()));
}

#[tokio::test]
async fn nothing_is_left_when_it_ends() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let running = Running::start(&db.options, &name, &[], "read line; exit 0").await;
    let all = children(running.runner());
    assert_eq!(all.len(), 2, "the command and the holder");

    assert_eq!(running.end().await.0, 0);

    for pid in all {
        assert!(!signals::is_alive(pid), "not even a zombie is left of {pid}");
        ends(pid, "it is gone").await;
    }
}
