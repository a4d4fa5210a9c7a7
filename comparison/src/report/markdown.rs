//! The figures for people: the targets, then a table for each measure.
//!
//! A cell is the median of the rounds and, where there is something to hold it against, the median of
//! the ratios to that within each round, with the least and the most of them.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::figures::{Figures, Key};
use crate::peers::{etcd, leasehold, updates};
use crate::statistics::Spread;
use crate::targets::Target;
use crate::works::fence::Write as FenceWrite;
use crate::works::{SelectOne, growth, handoff, miss};

pub fn write(figures: &Figures, targets: &[Target]) -> String {
    let mut text = String::new();
    for note in &figures.notes {
        let _ = writeln!(text, "- {note}");
    }
    text.push_str("\n| target | value | spread | wanted | met |\n| --- | ---: | --- | ---: | --- |\n");
    for target in targets {
        let (value, spread) = match target.found {
            Some(found) => (number(found.median), spread(found)),
            None => ("not measured".to_owned(), String::new()),
        };
        let met = match target.is_met() {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "",
        };
        let _ = writeln!(
            text,
            "| {}: {} | {value} | {spread} | {} {} | {met} |",
            target.id,
            target.what,
            target.bound.sign(),
            number(target.bound.limit()),
        );
    }
    let tables: BTreeSet<(char, &str)> = figures.keys().map(|key| (key.work, key.measure)).collect();
    for (work, measure) in tables {
        table(&mut text, figures, work, measure);
    }
    text
}

fn table(text: &mut String, figures: &Figures, work: char, measure: &'static str) {
    let keys: Vec<Key> = figures
        .keys()
        .filter(|key| (key.work, key.measure) == (work, measure))
        .collect();
    let sizes: BTreeSet<u64> = keys.iter().map(|key| key.size).collect();
    let peers: BTreeSet<&str> = keys.iter().map(|key| key.peer).collect();
    let _ = write!(text, "\n**{work}: {measure}**, by {}", size_of(work, measure));
    if let Some(reference) = reference(keys[0]) {
        let _ = write!(text, "; in parentheses to {}", named(reference, keys[0]));
    }
    text.push_str("\n\n| |");
    sizes.iter().for_each(|size| text.push_str(&format!(" {size} |")));
    text.push_str("\n| --- |");
    sizes.iter().for_each(|_| text.push_str(" ---: |"));
    text.push('\n');
    for peer in peers {
        let _ = write!(text, "| {peer} |");
        for size in &sizes {
            let key = Key::new(work, measure, peer, *size);
            let _ = write!(text, " {} |", cell(figures, key));
        }
        text.push('\n');
    }
}

fn cell(figures: &Figures, key: Key) -> String {
    let Some(found) = figures.spread(key) else {
        return String::new();
    };
    match reference(key).filter(|reference| !reference.contains(&key)) {
        Some(reference) => match figures.ratio_to_sum(key, &reference) {
            Some(ratio) => format!(
                "{} ({} ×, {})",
                number(found.median),
                number(ratio.median),
                spread(ratio)
            ),
            None => number(found.median),
        },
        None if found.least == found.most => number(found.median),
        None => format!("{}, {}", number(found.median), spread(found)),
    }
}

/// What a value is held against, if anything: one figure, or the sum of several.
fn reference(key: Key) -> Option<Vec<Key>> {
    match (key.work, key.measure) {
        ('A', _) => Some(vec![key.peer(updates::NAME)]),
        ('B', "p50 ms" | "p99 ms") => {
            let limits = [handoff::UPDATE, handoff::NOTIFY];
            Some(limits.map(|peer| key.measure("p50 ms").peer(peer).size(1)).into())
        }
        ('B', "hand-offs/s on hot names") => Some(vec![key.size(1)]),
        ('B', "hand-offs/s") => Some(vec![key.peer(etcd::NAME)]),
        ('E', "writes/s" | "p50 ms" | "p99 ms") => {
            let bare =
                match key.peer == FenceWrite::FencedTransaction.name() || key.peer == FenceWrite::Transaction.name() {
                    true => FenceWrite::Transaction,
                    false => FenceWrite::Bare,
                };
            Some(vec![key.peer(bare.name())])
        }
        ('F', miss::ON_ONE_NAME) => Some(vec![key.measure(miss::MISSES)]),
        ('F', _) => Some(vec![key.peer(SelectOne::NAME).size(1)]),
        ('G', measure) if growth::RATES.contains(&measure) || measure == growth::INLINE => {
            Some(vec![key.peer(leasehold::NAME).size(1)])
        }
        _ => None,
    }
}

fn named(reference: Vec<Key>, key: Key) -> String {
    let names: Vec<String> = reference
        .iter()
        .map(|of| match (of.work, of.size == key.size) {
            ('E', _) => "the same without the fence".to_owned(),
            ('F', _) if of.peer == key.peer => "a name for each task".to_owned(),
            ('F', _) => format!("{} on one connection", of.peer),
            ('G', _) => "one other lease".to_owned(),
            ('B', _) if of.measure.ends_with("names") => "one name".to_owned(),
            ('B', _) if of.peer != etcd::NAME => format!("{} p50", of.peer),
            _ => of.peer.to_owned(),
        })
        .collect();
    names.join(" + ")
}

fn size_of(work: char, measure: &str) -> &'static str {
    match (work, measure) {
        ('B', "hand-offs/s on hot names") => "hot names, 4 waiters each",
        ('B' | 'D', _) => "waiters",
        ('C', _) => "leases held",
        ('G', growth::SIZE) => "cycles",
        ('G', growth::KEPT) => "seconds with a snapshot open",
        ('G', measure) if measure.starts_with("cycles/s") => "seconds with a snapshot open",
        ('G', _) => "other leases",
        _ => "tasks",
    }
}

fn spread(of: Spread) -> String {
    format!("{} to {}", number(of.least), number(of.most))
}

/// Three digits that count, thousands apart.
fn number(value: f64) -> String {
    if value.is_infinite() {
        return "∞".to_owned();
    }
    let decimals = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_show_what_counts() {
        assert_eq!(number(1_234_567.8), "1,234,568");
        assert_eq!(number(1234.5), "1,234");
        assert_eq!(number(123.4), "123");
        assert_eq!(number(12.34), "12.3");
        assert_eq!(number(1.15), "1.15");
        assert_eq!(number(0.0456), "0.046");
        assert_eq!(number(f64::INFINITY), "∞");
    }

    #[test]
    fn cell_holds_a_value_against_its_reference_within_each_round() {
        let key = Key::new('A', "cycles/s", leasehold::NAME, 8);
        let mut figures = Figures::default();
        for (round, ours, yardstick) in [(0, 300.0, 100.0), (1, 100.0, 50.0), (2, 500.0, 100.0)] {
            figures.record(key, round, ours);
            figures.record(key.peer(updates::NAME), round, yardstick);
        }

        assert_eq!(cell(&figures, key), "300 (3.00 ×, 2.00 to 5.00)");
        assert_eq!(cell(&figures, key.peer(updates::NAME)), "100, 50.0 to 100");
        assert_eq!(cell(&figures, key.size(1)), "");
    }

    #[test]
    fn missed_and_unmeasured_targets_stand_out() {
        let mut figures = Figures::default();
        let key = Key::new('B', "p50 ms", leasehold::NAME, 64);
        figures.record(key, 0, 1.7);
        let mut targets = crate::targets::judge(&figures, &crate::plan::Plan::whole());
        targets.retain(|target| ["B.p50", "A.1"].contains(&target.id));

        let text = write(&figures, &targets);

        assert!(text.contains("| 1.70 | 1.70 to 1.70 | ≤ 1.50 | **no** |"), "{text}");
        assert!(text.contains("| not measured |  | ≥ 1.15 |  |"), "{text}");
    }
}
