//! The distribution as a curve: latency over the share of messages that are at most as slow, stretched so
//! that each further nine takes the same width.

use std::fmt::Write;

use hdrhistogram::Histogram;

/// What is printed and marked.
pub const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)];

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;

/// Nines at the right end.
const NINES: f64 = 4.3;
const POINTS: u32 = 200;

/// Latencies in ns as an SVG with axes in µs.
pub fn svg(histogram: &Histogram<u64>, title: &str) -> String {
    let quantile = |nines: f64| 1.0 - 10f64.powf(-nines);
    let micros = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
    let highest = micros(quantile(NINES)).max(0.001);
    let x = |nines: f64| LEFT + WIDTH * nines / NINES;
    let y = |micros: f64| TOP + HEIGHT * (1.0 - micros / highest);

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\">{title}</text>\n",
        LEFT + WIDTH + 30.0,
        TOP + HEIGHT + 50.0
    );
    for step in 0..=4 {
        let value = highest * f64::from(step) / 4.0;
        line(&mut svg, [LEFT, y(value), LEFT + WIDTH, y(value)]);
        text(&mut svg, LEFT - 8.0, y(value) + 4.0, "end", &format!("{value:.1} µs"));
    }
    for (name, quantile) in QUANTILES {
        let nines = -(1.0 - quantile).log10();
        line(&mut svg, [x(nines), TOP, x(nines), TOP + HEIGHT]);
        text(&mut svg, x(nines), TOP + HEIGHT + 18.0, "middle", name);
        text(
            &mut svg,
            x(nines),
            TOP + HEIGHT + 34.0,
            "middle",
            &format!("{:.2}", micros(quantile)),
        );
    }
    svg += "<polyline fill=\"none\" stroke=\"#0a58ca\" stroke-width=\"2\" points=\"";
    for point in 0..=POINTS {
        let nines = NINES * f64::from(point) / f64::from(POINTS);
        let _ = write!(svg, "{:.1},{:.1} ", x(nines), y(micros(quantile(nines))));
    }
    svg += "\"/>\n</svg>\n";
    svg
}

fn line(svg: &mut String, [x1, y1, x2, y2]: [f64; 4]) {
    let _ = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>"
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}
