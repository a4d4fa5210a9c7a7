//! The picture: faults in lanes by kind, and below them the grants of every second.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::clock::SECOND;
use crate::history::{Fault, History};

const LEFT: f64 = 110.0;
const WIDTH: f64 = 1200.0;
const TOP: f64 = 52.0;
const LANE: f64 = 16.0;
const GRANTS: f64 = 130.0;

pub fn draw(history: &History, violations: usize) -> String {
    let mut lanes: BTreeMap<&str, Vec<&Fault>> = BTreeMap::new();
    for fault in &history.faults {
        lanes.entry(&fault.kind).or_default().push(fault);
    }
    let span = (history.ended_at - history.began_at).max(SECOND);
    let x = |at: i64| LEFT + (at - history.began_at).clamp(0, span) as f64 / span as f64 * (WIDTH - LEFT - 16.0);
    let bottom = TOP + lanes.len() as f64 * LANE + 14.0 + GRANTS;
    let height = bottom + 34.0;

    // No bar is thinner than two points.
    let step = (span / SECOND * 2 / (WIDTH - LEFT) as i64).max(1);
    let mut bars = vec![0_u32; (span / SECOND / step) as usize + 1];
    for change in history.audit.iter().filter(|change| change.grant().is_some()) {
        let bar = ((change.up - history.began_at) / SECOND / step).max(0) as usize;
        if let Some(count) = bars.get_mut(bar) {
            *count += 1;
        }
    }
    let most = bars.iter().copied().max().unwrap_or(1).max(1);
    let grants: u32 = bars.iter().sum();

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <title>Faults and grants over time</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\" font-weight=\"bold\" fill=\"#222\">{} faults, {grants} grants, {violations} violations</text>\n\
         <text x=\"{LEFT}\" y=\"39\" fill=\"#555\">above: what was done to clients, network and server; below: grants in every {step} s, {most} at most</text>\n",
        history.faults.len(),
    );
    for (number, (kind, faults)) in lanes.iter().enumerate() {
        let top = TOP + number as f64 * LANE;
        let _ = writeln!(
            svg,
            "<text x=\"12\" y=\"{:.1}\" fill=\"#444\">{kind}</text>",
            top + 11.0
        );
        let _ = writeln!(
            svg,
            "<path d=\"{}\" fill=\"#c2571a\" fill-opacity=\"0.75\"/>",
            marks(faults.iter().map(|fault| (x(fault.from), x(fault.to))), top + 2.0)
        );
    }
    let mut shape = String::new();
    for (bar, count) in bars.iter().enumerate().filter(|(_, count)| **count > 0) {
        let from = history.began_at + bar as i64 * step * SECOND;
        let (left, right) = (x(from), x(from + step * SECOND));
        let tall = f64::from(*count) / f64::from(most) * GRANTS;
        let _ = write!(
            shape,
            "M{left:.1} {bottom:.1}v-{tall:.1}h{:.1}v{tall:.1}z",
            (right - left - 0.4).max(0.4)
        );
    }
    let _ = writeln!(svg, "<path d=\"{shape}\" fill=\"#2f6fb0\"/>");
    let calm = x(history.calm_from);
    let _ = writeln!(
        svg,
        "<path d=\"M{calm:.1} {TOP}V{bottom:.1}\" stroke=\"#3b8a4a\" stroke-dasharray=\"4 3\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#3b8a4a\">calm</text>",
        calm + 3.0,
        TOP - 2.0
    );
    let every = [5, 10, 30, 60, 300]
        .into_iter()
        .find(|every| span / SECOND / every <= 15)
        .unwrap_or(600);
    for second in (0..=span / SECOND).step_by(every as usize) {
        let tick = x(history.began_at + second * SECOND);
        let _ = writeln!(
            svg,
            "<path d=\"M{tick:.1} {TOP}V{:.1}\" stroke=\"#00000014\"/><text x=\"{tick:.1}\" y=\"{:.1}\" fill=\"#555\" text-anchor=\"middle\">{second} s</text>",
            bottom + 4.0,
            bottom + 20.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Those that would touch each other are one.
fn marks(faults: impl Iterator<Item = (f64, f64)>, top: f64) -> String {
    let mut spans: Vec<(f64, f64)> = Vec::new();
    for (from, to) in faults {
        let to = to.max(from + 1.2);
        match spans.last_mut() {
            Some((_, end)) if from <= *end => *end = end.max(to),
            _ => spans.push((from, to)),
        }
    }
    let mut path = String::new();
    for (from, to) in spans {
        let wide = to - from;
        let _ = write!(path, "M{from:.1} {top:.1}h{wide:.1}v{:.1}h-{wide:.1}z", LANE - 4.0);
    }
    path
}
