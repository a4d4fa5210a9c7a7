//! Finding a PostgreSQL installation and the user its server may run as.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ClusterError;

/// The directory with the server's programs.
pub(crate) fn find_bin_dir() -> Result<PathBuf, ClusterError> {
    if let Some(chosen) = env::var_os(BIN_VARIABLE) {
        let chosen = PathBuf::from(chosen);
        return match is_bin_dir(&chosen) {
            true => Ok(chosen),
            false => Err(ClusterError::new(format!(
                "{BIN_VARIABLE} is {}, which does not hold initdb and postgres",
                chosen.display()
            ))),
        };
    }
    newest_packaged().or_else(on_path).ok_or_else(|| {
        ClusterError::new(format!(
            "no PostgreSQL server found: neither {BIN_VARIABLE}, nor {PACKAGED}/*/bin, nor PATH has \
             initdb and postgres; `apt-get install postgresql` or the like brings them"
        ))
    })
}

/// The program and arguments that run what follows as a user the server accepts.
///
/// Empty for an ordinary user. PostgreSQL refuses to run as root, so root steps down.
pub(crate) fn step_down() -> Result<Vec<OsString>, ClusterError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Vec::new());
    }
    let user = ["postgres", "nobody"]
        .into_iter()
        .find_map(|name| Some((id("-u", name)?, id("-g", name)?)));
    let (user, group) = user.ok_or_else(|| {
        ClusterError::new("PostgreSQL refuses to run as root, and there is no user postgres or nobody".to_owned())
    })?;
    let command = [
        "setpriv".to_owned(),
        format!("--reuid={user}"),
        format!("--regid={group}"),
        "--clear-groups".to_owned(),
    ];
    Ok(command.map(OsString::from).into())
}

fn newest_packaged() -> Option<PathBuf> {
    let majors = fs::read_dir(PACKAGED)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let mut majors: Vec<u32> = majors.collect();
    majors.sort_unstable_by(|a, b| b.cmp(a));
    let bin_dirs = majors
        .into_iter()
        .map(|major| Path::new(PACKAGED).join(major.to_string()).join("bin"));
    bin_dirs.into_iter().find(|dir| is_bin_dir(dir))
}

fn on_path() -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).find(|dir| is_bin_dir(dir))
}

fn is_bin_dir(dir: &Path) -> bool {
    ["initdb", "postgres"].iter().all(|program| dir.join(program).is_file())
}

fn id(which: &str, user: &str) -> Option<u32> {
    let output = Command::new("id").args([which, user]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

const BIN_VARIABLE: &str = "LEASEHOLD_PG_BIN";
const PACKAGED: &str = "/usr/lib/postgresql";
