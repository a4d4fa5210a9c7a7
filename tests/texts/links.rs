//! Every link between the documents leads somewhere, in the repository and in the published documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use crate::documents::{documents, prose, read, root};

#[test]
fn every_link_leads_to_a_file_that_there_is_and_to_a_heading_in_it() {
    let mut dead = Vec::new();
    let mut followed = 0;
    for document in documents() {
        let text = prose(&read(&document));
        for target in targets(&text) {
            followed += 1;
            if let Some(problem) = problem(&document, &target) {
                dead.push(format!("{}: {target}: {problem}", document.display()));
            }
        }
    }

    assert!(dead.is_empty(), "{}", dead.join("\n"));
    assert!(followed > 100, "{followed}");
}

#[test]
fn every_reference_in_a_document_is_defined_there_and_every_definition_is_used() {
    for document in documents() {
        let text = prose(&read(&document));
        let used: BTreeSet<String> = references(&text).into_iter().collect();
        let defined: BTreeSet<String> = definitions(&text).into_keys().collect();

        assert_eq!(used, defined, "{}", document.display());
    }
}

/// rustdoc takes the first definition of a link, and those of `src/guide/links.md` come first.
#[test]
fn every_link_of_a_chapter_has_a_definition_for_the_published_documentation() {
    let published = definitions(&read("src/guide/links.md"));
    let mut used = BTreeSet::new();
    for chapter in documents().into_iter().filter(|path| path.starts_with("docs/guide")) {
        let text = prose(&read(&chapter));
        for label in definitions(&text).into_keys() {
            assert!(published.contains_key(&label), "{}: {label}", chapter.display());
            used.insert(label);
        }
        for target in inline(&text) {
            assert!(target.contains("://"), "{}: {target} by reference", chapter.display());
        }
    }

    assert_eq!(
        used,
        published.into_keys().collect(),
        "defined for the chapters and not used"
    );
}

#[test]
fn every_chapter_is_a_module_of_the_guide_and_stands_in_its_list() {
    let (module, list) = (read("src/guide.rs"), read("docs/guide/README.md"));
    let chapters = documents().into_iter().filter(|path| path.starts_with("docs/guide"));
    for chapter in chapters.filter(|path| !path.ends_with("README.md")) {
        let name = chapter.file_stem().unwrap().to_str().unwrap();
        let included = format!("#[doc = include_str!(\"../docs/guide/{name}.md\")]\npub mod {name} {{}}\n");

        assert!(module.contains(&included), "{name}");
        assert!(list.contains(&format!("\n[{name}]: {name}.md\n")), "{name}");
    }
}

/// What is wrong with a link from `document`.
fn problem(document: &Path, target: &str) -> Option<String> {
    if target.contains("://") {
        return None;
    }
    let (file, heading) = match target.split_once('#') {
        Some((file, heading)) => (file, Some(heading)),
        None => (target, None),
    };
    let file = match file {
        "" => document.to_owned(),
        file => lexical(&document.parent().unwrap_or(Path::new("")).join(file)),
    };
    if !root().join(&file).exists() {
        return Some("there is no such file".into());
    }
    let heading = heading?;
    let is_there = headings(&read(&file)).contains(heading);
    (!is_there).then(|| "there is no such heading".into())
}

/// Without `..`, which leads out of the repository in no link.
fn lexical(path: &Path) -> PathBuf {
    let mut way = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => assert!(way.pop(), "{} leaves the repository", path.display()),
            other => way.push(other),
        }
    }
    way
}

/// The anchors of a document's headings, as GitHub makes them.
fn headings(document: &str) -> BTreeSet<String> {
    let text = prose(document);
    let titles = text.lines().filter_map(|line| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len()).then(|| title.strip_prefix(' ')).flatten()
    });
    titles
        .map(|title| {
            title
                .to_lowercase()
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

fn targets(text: &str) -> Vec<String> {
    let mut targets = inline(text);
    targets.extend(definitions(text).into_values());
    targets
}

/// `[text](target)`
fn inline(text: &str) -> Vec<String> {
    let text = without_code(text);
    let ends = text.match_indices("](").map(|(at, _)| &text[at + 2..]);
    ends.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()))
        .collect()
}

/// `[text][label]`
fn references(text: &str) -> Vec<String> {
    let text = without_code(text);
    let ends = text.match_indices("][").map(|(at, _)| &text[at + 2..]);
    ends.filter_map(|rest| Some(rest.split_once(']')?.0.to_owned()))
        .collect()
}

/// `[label]: target`
fn definitions(text: &str) -> BTreeMap<String, String> {
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
    let lines = lines.filter(|(label, _)| !label.contains(']'));
    lines
        .map(|(label, target)| (label.to_owned(), target.to_owned()))
        .collect()
}

/// Code may hold brackets of its own.
fn without_code(text: &str) -> String {
    let mut parts = text.split('`');
    let first = parts.next().unwrap_or_default().to_owned();
    // What is between two back-ticks goes, and an odd number of them is the document's mistake.
    parts
        .collect::<Vec<_>>()
        .chunks(2)
        .fold(first, |text, part| text + part.get(1).unwrap_or(&""))
}
