//! The distribution as a curve: latency over the share of messages that are at most as slow. Each further nine
//! of the share takes the same width. The axis of latency is logarithmic. The slowest message is a dot at the right.

use std::fmt::Write;

use hdrhistogram::Histogram;

/// Quantiles that are printed and marked, as far as there are enough messages.
const QUANTILES: [(&str, f64); 5] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)];

/// Messages that must be slower than a quantile for it to be shown: with fewer it is chance.
const TAIL: f64 = 10.0;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 90.0;
const TOP: f64 = 60.0;

/// Width that the maximum has to the right of the curves.
const MAXIMUM: f64 = 60.0;

const POINTS: u32 = 200;

/// The quantiles that this number of messages can show.
pub fn quantiles(messages: u64) -> impl Iterator<Item = (&'static str, f64)> {
    QUANTILES.into_iter().filter(move |(_, quantile)| {
        // A median is one of any number.
        *quantile <= 0.5 || messages as f64 * (1.0 - quantile) >= TAIL - 1e-6
    })
}

/// A distribution of latencies in ns.
pub struct Curve<'a> {
    /// The word beside its colour.
    pub name: String,
    pub histogram: &'a Histogram<u64>,
}

/// Colours of the curves.
const COLOURS: [&str; 2] = ["#0a58ca", "#c2410c"];

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

/// Curves of equally many messages as an SVG with an axis in µs, whose label is `what`. A dot at the right is the
/// slowest message of a curve.
pub fn svg(curves: &[Curve<'_>], title: &str, what: &str) -> String {
    let messages = curves.iter().map(|curve| curve.histogram.len()).min().unwrap_or(0);
    let least = curves.iter().map(|curve| curve.histogram.min()).min().unwrap_or(0);
    let most = curves.iter().map(|curve| curve.histogram.max()).max().unwrap_or(0);
    // The curves end where the last messages are too few.
    let nines = (messages as f64 / TAIL).log10().max(1.0);
    let quantile = |nines: f64| 1.0 - 10f64.powf(-nines);
    let ticks = ticks(micros(least).max(0.001), micros(most).max(0.001));
    let (lowest, highest) = (ticks[0].log10(), ticks[ticks.len() - 1].log10());
    let x = |at: f64| LEFT + (WIDTH - MAXIMUM) * at / nines;
    let y = |micros: f64| {
        let share = (micros.max(0.001).log10() - lowest) / (highest - lowest);
        TOP + HEIGHT * (1.0 - share.clamp(0.0, 1.0))
    };

    let below = TOP + HEIGHT + 34.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\">{title}</text>\n\
         <text x=\"{LEFT}\" y=\"42\" fill=\"#555\">{what}, µs, logarithmic, over the share of \
         messages that are not slower</text>\n",
        LEFT + WIDTH + 30.0,
        below + 16.0 * curves.len() as f64
    );
    for &tick in &ticks {
        line(&mut svg, [LEFT, y(tick), LEFT + WIDTH, y(tick)]);
        text(&mut svg, LEFT - 8.0, y(tick) + 4.0, "end", "#000", &format!("{tick} µs"));
    }
    let maximum = ("max", LEFT + WIDTH);
    let marks = quantiles(messages)
        .map(|(name, quantile)| (name, x(-(1.0 - quantile).log10())))
        .chain([maximum])
        .collect::<Vec<_>>();
    for &(name, at) in &marks {
        line(&mut svg, [at, TOP, at, TOP + HEIGHT]);
        text(&mut svg, at, TOP + HEIGHT + 18.0, "middle", "#000", name);
    }
    for (index, Curve { name, histogram }) in curves.iter().enumerate() {
        let (colour, row) = (COLOURS[index % COLOURS.len()], below + 16.0 * index as f64);
        let figures = quantiles(messages).map(|(_, quantile)| histogram.value_at_quantile(quantile));
        for (&(_, at), figure) in marks.iter().zip(figures.chain([histogram.max()])) {
            text(&mut svg, at, row, "middle", colour, &format!("{:.2}", micros(figure)));
        }
        text(&mut svg, LEFT + 8.0, TOP + 16.0 * (index + 1) as f64, "start", colour, name);
        let _ = write!(svg, "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"");
        for point in 0..=POINTS {
            let at = nines * f64::from(point) / f64::from(POINTS);
            let _ = write!(svg, "{:.1},{:.1} ", x(at), y(micros(histogram.value_at_quantile(quantile(at)))));
        }
        svg += "\"/>\n";
        let (at, slowest) = (LEFT + WIDTH, y(micros(histogram.max())));
        let _ = writeln!(svg, "<circle cx=\"{at:.1}\" cy=\"{slowest:.1}\" r=\"4\" fill=\"{colour}\"/>");
    }
    svg += "</svg>\n";
    svg
}

/// Round values around a range: 1, 2 and 5 times powers of ten.
fn ticks(least: f64, most: f64) -> Vec<f64> {
    let from = least.log10().floor() as i32;
    let to = most.log10().ceil() as i32;
    let all: Vec<f64> = (from..=to)
        .flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power)))
        // 0.1 * 2 and the like, without the digits that are not meant.
        .map(|tick| (tick * 1e6).round() / 1e6)
        .collect();
    let first = all.iter().rposition(|&tick| tick <= least).unwrap_or(0);
    let last = all.iter().position(|&tick| tick >= most).unwrap_or(all.len() - 1);
    all[first..=last.max(first + 1).min(all.len() - 1)].to_vec()
}

fn line(svg: &mut String, [x1, y1, x2, y2]: [f64; 4]) {
    let _ = writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>");
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, colour: &str, text: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(messages: u64) -> Vec<&'static str> {
        quantiles(messages).map(|(name, _)| name).collect()
    }

    #[test]
    fn no_quantile_is_finer_than_the_messages_allow() {
        assert_eq!(names(1), ["p50"]);
        assert_eq!(names(99), ["p50"]);
        assert_eq!(names(100), ["p50", "p90"]);
        assert_eq!(names(1000), ["p50", "p90", "p99"]);
        assert_eq!(names(9_999), ["p50", "p90", "p99"]);
        assert_eq!(names(10_000), ["p50", "p90", "p99", "p99.9"]);
        assert_eq!(names(100_000), ["p50", "p90", "p99", "p99.9", "p99.99"]);
    }

    #[test]
    fn ticks_are_round_and_around_the_values() {
        assert_eq!(ticks(0.8, 13.0), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(ticks(1.0, 1.0), [1.0, 2.0]);
        assert_eq!(ticks(0.001, 0.003), [0.001, 0.002, 0.005]);
        assert_eq!(ticks(700.0, 999.0), [500.0, 1000.0]);
    }
}
