//! A chart of lines over logarithmic axes, as SVG.

use std::fmt::Write;

pub struct Chart {
    pub title: &'static str,
    pub subtitle: &'static str,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
}

pub struct Axis {
    pub title: &'static str,
    pub is_logarithmic: bool,
}

pub struct Line {
    pub name: &'static str,
    pub points: Vec<(f64, f64)>,
}

impl Chart {
    pub fn draw(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| line.points.iter().copied());
        let x = Scale::new(points().map(|point| point.0), self.x.is_logarithmic, LEFT, RIGHT);
        let y = Scale::new(points().map(|point| point.1), self.y.is_logarithmic, BOTTOM, TOP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <title>{}</title>\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n\
             <text x=\"{LEFT}\" y=\"22\" font-size=\"15\" font-weight=\"bold\" fill=\"#222\">{}</text>\n\
             <text x=\"{LEFT}\" y=\"39\" fill=\"#555\">{}</text>\n",
            escaped(self.title),
            escaped(self.title),
            escaped(self.subtitle),
        );
        for (value, label) in x.ticks() {
            let at = x.at(value);
            let _ = writeln!(
                svg,
                "<path d=\"M{at:.1} {TOP}V{BOTTOM}\" stroke=\"#00000014\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" fill=\"#555\" text-anchor=\"middle\">{label}</text>",
                BOTTOM + 16.0
            );
        }
        for (value, label) in y.ticks() {
            let at = y.at(value);
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"#00000014\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#555\" text-anchor=\"end\">{label}</text>",
                LEFT - 6.0,
                at + 4.0
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"#222\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate(16 {:.1}) rotate(-90)\" fill=\"#222\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(LEFT, RIGHT),
            BOTTOM + 34.0,
            escaped(self.x.title),
            f64::midpoint(TOP, BOTTOM),
            escaped(self.y.title)
        );
        for (number, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let dashes = if number < COLOURS.len() {
                ""
            } else {
                " stroke-dasharray=\"5 3\""
            };
            let place = |point: &(f64, f64)| format!("{:.1},{:.1}", x.at(point.0), y.at(point.1));
            let places: Vec<String> = line.points.iter().map(place).collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"{dashes}/>",
                places.join(" ")
            );
            for point in line.points.iter().filter(|_| line.points.len() <= MARKED) {
                let (across, up) = (x.at(point.0), y.at(point.1));
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{across:.1}\" cy=\"{up:.1}\" r=\"2.8\" fill=\"{colour}\"/>"
                );
            }
            let top = TOP + 6.0 + number as f64 * 17.0;
            let _ = writeln!(
                svg,
                "<path d=\"M{:.1} {top:.1}h18\" stroke=\"{colour}\" stroke-width=\"2.5\"{dashes}/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#222\">{}</text>",
                RIGHT + 14.0,
                RIGHT + 38.0,
                top + 4.0,
                escaped(line.name)
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// From values to places.
struct Scale {
    is_logarithmic: bool,
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn new(values: impl Iterator<Item = f64>, is_logarithmic: bool, from: f64, to: f64) -> Self {
        let values = values.filter(|value| value.is_finite() && (!is_logarithmic || *value > 0.0));
        let (least, most) = values.fold((f64::MAX, f64::MIN), |(least, most), value| {
            (least.min(value), most.max(value))
        });
        let (least, most) = match (least <= most, is_logarithmic) {
            (false, _) => (0.1, 1.0),
            (true, true) => (least / 1.1, most * 1.1),
            (true, false) => (least.min(0.0), most.max(least + 1e-9)),
        };
        Self {
            is_logarithmic,
            least,
            most,
            from,
            to,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let place = |value: f64| {
            if self.is_logarithmic {
                value.max(self.least).ln()
            } else {
                value
            }
        };
        let share = (place(value) - place(self.least)) / (place(self.most) - place(self.least));
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        let candidates: Vec<f64> = if self.is_logarithmic {
            let exponents = self.least.log10().floor() as i32..=self.most.log10().ceil() as i32;
            let is_wide = exponents.end() - exponents.start() > 4;
            let steps: &[f64] = if is_wide { &[1.0] } else { &[1.0, 2.0, 5.0] };
            exponents
                .flat_map(|exponent| steps.iter().map(move |step| step * 10f64.powi(exponent)))
                .collect()
        } else {
            (0..=5)
                .map(|fifth| self.least + (self.most - self.least) * f64::from(fifth) / 5.0)
                .collect()
        };
        candidates
            .into_iter()
            .filter(|value| (self.least..=self.most).contains(value))
            .map(|value| (value, label(value)))
            .collect()
    }
}

fn label(value: f64) -> String {
    match value {
        1e6.. => format!("{} M", value / 1e6),
        1e3.. => format!("{} k", value / 1e3),
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const WIDTH: f64 = 980.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 730.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 390.0;
/// Longer lines are curves, without a mark on each point.
const MARKED: usize = 12;
const COLOURS: [&str; 9] = [
    "#c2571a", "#2f6fb0", "#3b8a4a", "#8a4fa3", "#b03a5b", "#5c6b73", "#c9a227", "#2a9d8f", "#7a5230",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithmic_scale_puts_equal_ratios_at_equal_distances() {
        let scale = Scale::new([1.0, 100.0].into_iter(), true, 0.0, 100.0);

        let (low, middle, high) = (scale.at(1.0), scale.at(10.0), scale.at(100.0));

        assert!((middle - low - (high - middle)).abs() < 1e-6);
        assert!(low > 0.0 && high < 100.0);
    }

    #[test]
    fn chart_draws_every_line_with_its_name_and_survives_emptiness() {
        let axis = |title| Axis {
            title,
            is_logarithmic: true,
        };
        let mut chart = Chart {
            title: "t",
            subtitle: "s",
            x: axis("x"),
            y: axis("y"),
            lines: Vec::new(),
        };
        assert!(chart.draw().ends_with("</svg>\n"));

        chart.lines = ["one", "two & three"]
            .map(|name| Line {
                name,
                points: vec![(1.0, 10.0), (128.0, 5000.0), (512.0, 0.0)],
            })
            .into();

        let svg = chart.draw();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("two &amp; three") && !svg.contains("NaN") && !svg.contains("inf"));
    }
}
