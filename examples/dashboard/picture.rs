//! The picture: a small panel for each of the dashboard's, with the same title.

use std::fmt::Write;

use crate::panels::{Line, PANELS, Panel, Shows, WINDOW};
use crate::scrape::Scrape;

const COLUMNS: usize = 3;
const WIDTH: f64 = 1080.0;
const TOP: f64 = 52.0;
/// Of a panel, with the space around it.
const CELL: (f64, f64) = (356.0, 188.0);
/// Of the field within a panel in which lines are drawn.
const FIELD: (f64, f64, f64, f64) = (58.0, 30.0, 276.0, 108.0);
const COLOURS: [&str; 7] = [
    "#2f6fb0", "#c2571a", "#3b8a4a", "#8a4fa8", "#b08a1e", "#a8324a", "#5a6470",
];

pub fn draw(scrapes: &[Scrape]) -> String {
    let height = TOP + PANELS.len().div_ceil(COLUMNS) as f64 * CELL.1 + 8.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"10\">\n\
         <title>What the crate tells of a small application, panel by panel</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"12\" y=\"22\" font-size=\"15\" font-weight=\"bold\" fill=\"#222\">leasehold</text>\n\
         <text x=\"12\" y=\"40\" font-size=\"11\" fill=\"#555\">drawn by examples/dashboard from {} scrapes of its own endpoint, with the queries of grafana.json: rates and quantiles over {WINDOW:.0} s</text>\n",
        scrapes.len(),
    );
    for (number, panel) in PANELS.iter().enumerate() {
        let (column, row) = (number % COLUMNS, number / COLUMNS);
        let (x, y) = (6.0 + column as f64 * CELL.0, TOP + row as f64 * CELL.1);
        let _ = writeln!(svg, "<g transform=\"translate({x:.0} {y:.0})\">");
        draw_panel(&mut svg, panel, scrapes);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_panel(svg: &mut String, panel: &Panel, scrapes: &[Scrape]) {
    let (left, top, width, height) = FIELD;
    let lines = panel.lines(scrapes);
    let scale = Scale::of(panel, lines.values());
    let seconds = scrapes.last().map_or(1.0, |scrape| scrape.at);
    let x = |at: f64| left + at / seconds * width;
    let y = |value: f64| top + height * (1.0 - scale.share(value));

    let _ = writeln!(
        svg,
        "<rect x=\"4\" y=\"4\" width=\"{:.0}\" height=\"{:.0}\" rx=\"3\" fill=\"none\" stroke=\"#dddddd\"/>\
         <text x=\"12\" y=\"20\" font-weight=\"bold\" fill=\"#222\">{}</text>",
        CELL.0 - 8.0,
        CELL.1 - 8.0,
        panel.title,
    );
    for (value, label) in scale.ticks() {
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {:.1}H{:.1}\" stroke=\"#00000014\"/><text x=\"{:.0}\" y=\"{:.1}\" fill=\"#555\" text-anchor=\"end\">{label}</text>",
            y(value),
            left + width,
            left - 5.0,
            y(value) + 3.0,
        );
    }
    for third in 0..=3 {
        let at = seconds * f64::from(third) / 3.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.0}\" fill=\"#555\" text-anchor=\"middle\">{at:.0} s</text>",
            x(at),
            top + height + 14.0,
        );
    }
    let mut legend_at = left;
    for ((legend, line), colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let legend = if legend.is_empty() { "(none)" } else { legend };
        let _ = writeln!(
            svg,
            "<path d=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.3\"/>\
             <text x=\"{legend_at:.0}\" y=\"{:.0}\" fill=\"{colour}\">{legend}</text>",
            path(line, &x, &y),
            top + height + 32.0,
        );
        legend_at += 12.0 + 5.6 * legend.len() as f64;
    }
}

/// A line through the points, interrupted where a scrape had nothing to show.
fn path(line: &Line, x: &impl Fn(f64) -> f64, y: &impl Fn(f64) -> f64) -> String {
    let mut path = String::new();
    let mut latest = f64::NEG_INFINITY;
    for &(at, value) in line {
        let step = if at - latest > GAP { 'M' } else { 'L' };
        let _ = write!(path, "{step}{:.1} {:.1}", x(at), y(value));
        latest = at;
    }
    path
}

/// What the height of a panel stands for.
enum Scale {
    Linear {
        to: f64,
    },
    /// In seconds, by powers of ten.
    Powers {
        from: i32,
        to: i32,
    },
}

impl Scale {
    fn of<'a>(panel: &Panel, lines: impl Iterator<Item = &'a Line>) -> Self {
        let values = lines.flatten().map(|(_, value)| *value).filter(|value| *value > 0.0);
        let (least, most) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(least, most), value| {
            (least.min(value), most.max(value))
        });
        match panel.shows {
            Shows::Quantiles(..) => Self::Powers {
                from: least.min(most).log10().floor() as i32,
                to: most.log10().ceil() as i32,
            },
            Shows::Now(..) | Shows::Rate(..) => Self::Linear { to: round_up(most) },
        }
    }

    fn share(&self, value: f64) -> f64 {
        match *self {
            Self::Linear { to } => value / to,
            Self::Powers { from, to } => {
                (value.max(f64::MIN_POSITIVE).log10() - f64::from(from)).max(0.0) / f64::from((to - from).max(1))
            }
        }
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        match *self {
            Self::Linear { to } => [0.0, to / 2.0, to]
                .map(|value| (value, shortest(value).to_string()))
                .into(),
            Self::Powers { from, to } => (from..=to)
                .map(|power| {
                    let seconds = 10_f64.powi(power);
                    let label = match power {
                        0.. => format!("{seconds:.0} s"),
                        -3..0 => format!("{:.0} ms", seconds * 1e3),
                        _ => format!("{:.0} µs", seconds * 1e6),
                    };
                    (seconds, label)
                })
                .collect(),
        }
    }
}

/// The next of 1, 2, 5, 10, 20 and so on.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= value).unwrap_or(value)
}

/// Without the digits that a sum of doubles leaves.
fn shortest(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// Longer than between two scrapes, in seconds.
const GAP: f64 = 1.5;
