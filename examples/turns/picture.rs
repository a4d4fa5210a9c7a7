//! The picture: a line for each worker, grey while it waits, a numbered bar while it holds the name.

use std::fmt::Write;

use crate::turn::Turn;
use crate::worker::WORKERS;

const LEFT: f64 = 92.0;
const TOP: f64 = 58.0;
const WIDTH: f64 = 1080.0;
const ROW: f64 = 15.0;
const GAP: f64 = 12.0;
const COLOURS: [&str; 3] = ["#2f6fb0", "#c2571a", "#3b8a4a"];

pub fn draw(turns: &[Turn]) -> String {
    let processes = 1 + turns.iter().map(|turn| turn.process).max().unwrap_or(0);
    let began_at = turns.iter().map(|turn| turn.asked_at).fold(f64::MAX, f64::min);
    let ended_at = turns.iter().map(|turn| turn.released_at).fold(f64::MIN, f64::max);
    let x = |at: f64| LEFT + (at - began_at) / (ended_at - began_at) * (WIDTH - LEFT - 16.0);
    let y = |process: usize, worker: usize| TOP + (process * WORKERS + worker) as f64 * ROW + process as f64 * GAP;
    let bottom = y(processes - 1, WORKERS - 1) + ROW;
    let height = bottom + 40.0;

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <title>Who held the name when</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\" font-weight=\"bold\" fill=\"#222\">{processes} processes, {} workers, one name</text>\n\
         <text x=\"{LEFT}\" y=\"40\" fill=\"#555\">grey: waits in line; bar: holds the name, numbered in the order of the fencing tokens, {} to {}</text>\n",
        processes * WORKERS,
        turns.first().map_or(0, |turn| turn.token),
        turns.last().map_or(0, |turn| turn.token),
    );
    for process in 0..processes {
        let (colour, middle) = (COLOURS[process % COLOURS.len()], y(process, WORKERS / 2));
        let _ = writeln!(
            svg,
            "<text x=\"12\" y=\"{middle:.0}\" fill=\"{colour}\">process {}</text>",
            process + 1
        );
    }
    for turn in turns {
        let row = y(turn.process, turn.worker) + ROW / 2.0;
        let (asked, granted) = (x(turn.asked_at), x(turn.granted_at));
        let _ = writeln!(
            svg,
            "<path d=\"M{asked:.1} {row:.1}H{granted:.1}\" stroke=\"#c4c4c4\" stroke-width=\"1.5\"/>"
        );
    }
    for (number, turn) in turns.iter().enumerate() {
        let (top, colour) = (
            y(turn.process, turn.worker) + 1.5,
            COLOURS[turn.process % COLOURS.len()],
        );
        let (left, right) = (x(turn.granted_at), x(turn.released_at));
        let (width, middle) = (right - left, (left + right) / 2.0);
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" rx=\"2\" fill=\"{colour}\"/>\
             <text x=\"{middle:.1}\" y=\"{:.1}\" font-size=\"7.5\" fill=\"#fff\" text-anchor=\"middle\">{}</text>",
            ROW - 3.0,
            top + 8.8,
            number + 1,
        );
    }
    let seconds = ended_at - began_at;
    for tenth in 0..=(seconds * 5.0) as u32 {
        let at = f64::from(tenth) / 5.0;
        let tick = x(began_at + at);
        let _ = writeln!(
            svg,
            "<path d=\"M{tick:.1} {TOP}V{:.1}\" stroke=\"#00000014\"/><text x=\"{tick:.1}\" y=\"{:.1}\" fill=\"#555\" text-anchor=\"middle\">{at:.1} s</text>",
            bottom + 4.0,
            bottom + 20.0,
        );
    }
    svg.push_str("</svg>\n");
    svg
}
