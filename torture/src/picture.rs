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

    let mut seconds = vec![0_u32; (span / SECOND) as usize + 1];
    for change in history.audit.iter().filter(|change| change.grant().is_some()) {
        let second = ((change.up - history.began_at) / SECOND).max(0) as usize;
        if let Some(count) = seconds.get_mut(second) {
            *count += 1;
        }
    }
    let most = seconds.iter().copied().max().unwrap_or(1).max(1);
    let grants: u32 = seconds.iter().sum();

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <title>Faults and grants over time</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\" font-weight=\"bold\" fill=\"#222\">{} faults, {grants} grants, {violations} violations</text>\n\
         <text x=\"{LEFT}\" y=\"39\" fill=\"#555\">above: what was done to clients, network and server; below: grants in each second, {most} at most</text>\n",
        history.faults.len(),
    );
    for (number, (kind, faults)) in lanes.iter().enumerate() {
        let top = TOP + number as f64 * LANE;
        let _ = writeln!(
            svg,
            "<text x=\"12\" y=\"{:.1}\" fill=\"#444\">{kind}</text>",
            top + 11.0
        );
        for fault in faults {
            let (from, to) = (x(fault.from), x(fault.to));
            let _ = writeln!(
                svg,
                "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#c2571a\" fill-opacity=\"0.75\"/>",
                top + 2.0,
                (to - from).max(1.2),
                LANE - 4.0
            );
        }
    }
    for (second, count) in seconds.iter().enumerate() {
        let from = history.began_at + second as i64 * SECOND;
        let (left, right) = (x(from), x(from + SECOND));
        let tall = f64::from(*count) / f64::from(most) * GRANTS;
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" fill=\"#2f6fb0\"/>",
            bottom - tall,
            (right - left - 0.4).max(0.4)
        );
    }
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
