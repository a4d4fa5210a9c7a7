//! Replays the corpora of the fuzz targets, and what once broke them.

use std::fs;
use std::path::Path;

/// Every input of the directory. There are some: a corpus that is not found proves nothing.
fn replay(target: &str, property: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut inputs: Vec<_> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    inputs.sort();
    assert!(inputs.len() >= 5, "{} of {target}", inputs.len());
    for input in inputs {
        // The name of the test's thread is in its message, the input is not.
        let outcome = std::panic::catch_unwind(|| property(&fs::read(&input).expect("it can be read")));
        assert!(outcome.is_ok(), "{} breaks {target}", input.display());
    }
}

macro_rules! replays {
    ($($test:ident: $target:ident;)+) => {
        $(
            #[test]
            fn $test() {
                replay(stringify!($target), super::$target);
            }
        )+

        // And whatever chance brings: less than a fuzzer, but everywhere.
        mod chance {
            use proptest::prelude::*;

            proptest! {
                $(
                    #[test]
                    fn $target(data in proptest::collection::vec(any::<u8>(), 0..200)) {
                        super::super::$target(&data);
                    }
                )+
            }
        }
    };
}

replays! {
    names_of_the_corpus_are_told_apart_as_the_documentation_says: names;
    terms_of_the_corpus_are_told_apart_as_the_documentation_says: terms;
    options_of_the_corpus_are_told_apart_as_the_documentation_says: options;
    urls_of_the_corpus_are_told_apart_and_give_nothing_away: urls;
    answers_of_the_corpus_are_understood_or_refused: answers;
    wake_ups_of_the_corpus_reach_whom_they_are_for: line;
    faults_of_the_corpus_are_sorted_the_same_way_everywhere: faults;
}
