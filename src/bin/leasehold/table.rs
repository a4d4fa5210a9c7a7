//! Text for people: columns, spans of time, and names as a terminal can show them.

use std::time::Duration;

/// Columns as wide as they need to be, two spaces apart; the last one is cut where the terminal ends.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>], width: usize) -> Vec<String> {
    let mut widths: Vec<_> = head.iter().map(|cell| length(cell)).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(length(cell)).min(WIDEST);
        }
    }
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| {
            let cell = cut(cell, *width);
            format!("{cell}{}", " ".repeat(width - length(&cell)))
        });
        cut(padded.collect::<Vec<_>>().join("  ").trim_end(), width)
    };
    let mut lines = vec![line(head.to_vec())];
    lines.extend(rows.iter().map(|row| line(row.iter().map(String::as_str).collect())));
    lines
}

/// The two largest units that say something.
pub(crate) fn span(of: Duration) -> String {
    let seconds = of.as_secs();
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

/// Names and labels are anybody's text: what would move a terminal's cursor is written out.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_invisible(c) {
            printable.extend(c.escape_default());
        } else {
            printable.push(c);
        }
    }
    printable
}

/// The first so many characters.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if length(text) <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// Of the terminal; where there is none, nothing is cut.
pub(crate) fn width() -> usize {
    size().map_or(usize::MAX, |(width, _)| width)
}

pub(crate) fn height() -> usize {
    size().map_or(usize::MAX, |(_, height)| height)
}

fn size() -> Option<(usize, usize)> {
    terminal_size::terminal_size().map(|(width, height)| (width.0.into(), height.0.into()))
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Turns the direction of writing, or has no width.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A name may have 512 bytes.
const WIDEST: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_needed_and_lines_as_wide_as_allowed() {
        let rows = [
            vec!["a".into(), "x".repeat(100)],
            vec!["invoice:842".into(), "y".into()],
        ];

        let lines = table(&["NAME", "HOLDER"], &rows, 30);

        assert_eq!(lines[0], "NAME         HOLDER");
        assert_eq!(lines[1], format!("a            {}…", "x".repeat(16)));
        assert_eq!(lines[2], "invoice:842  y");
    }

    #[test]
    fn spans_have_two_units() {
        let spans = [0, 59, 61, 3600, 90_000].map(|seconds| span(Duration::from_secs(seconds)));

        assert_eq!(spans, ["0 s", "59 s", "1 min 1 s", "1 h 0 min", "1 d 1 h"]);
    }

    #[test]
    fn names_cannot_move_the_cursor_or_turn_the_line() {
        assert_eq!(printable("a\x1b[2Jb\nc\u{202e}d"), "a\\u{1b}[2Jb\\nc\\u{202e}d");
        assert_eq!(printable("größe:ü 世界"), "größe:ü 世界");
    }
}
