//! The repository's documents and sources, as texts.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The documents of the repository, from its root.
pub(crate) fn documents() -> Vec<PathBuf> {
    let mut documents: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benches/README.md"]
        .map(PathBuf::from)
        .into();
    documents.extend(files("docs", "md"));
    documents
}

/// The files below a directory whose names end so, from the root of the repository, in order.
pub(crate) fn files(directory: impl AsRef<Path>, extension: &str) -> Vec<PathBuf> {
    let directory = directory.as_ref();
    let mut files = Vec::new();
    for entry in fs::read_dir(root().join(directory)).expect("the directory is there") {
        let path = directory.join(entry.expect("it can be read").file_name());
        if root().join(&path).is_dir() {
            files.extend(self::files(path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// A document without its blocks of code.
pub(crate) fn prose(document: &str) -> String {
    let mut is_code = false;
    let lines = document.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    lines.map(|line| format!("{line}\n")).collect()
}
