//! Bar charts in SVG.

use std::fmt::Write as _;

use crate::report::Row;

const WIDTH: f64 = 860.0;
/// Where bars begin and end.
const BARS: (f64, f64) = (340.0, 790.0);
const BAR: f64 = 14.0;
const GROUP: f64 = 42.0;
const TOP: f64 = 96.0;

/// Most rows of a chart: the tables have all.
const MOST: usize = 10;

/// Two bars for each of up to ten rows, on a logarithmic axis: doorbell, and what it is compared with. `measured`
/// says when and on what machine.
pub fn bars(title: &str, measured: &str, rows: &[&Row]) -> String {
    let shown = choose(rows);
    let axis = Axis::over(shown.iter().flat_map(|row| [row.doorbell, row.reference]));
    let height = TOP + GROUP * shown.len() as f64 + 44.0;
    let unit = rows.first().map_or("", |row| row.unit);
    let left_out = match rows.len() - shown.len() {
        0 => String::new(),
        _ => format!(
            "{} of {} operations: those with the greatest ratios, and a sample of the rest",
            shown.len(),
            rows.len()
        ),
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"16\">{title}</text>\n\
         <text x=\"12\" y=\"42\" fill=\"#555\">{unit}, logarithmic; upper bar doorbell, lower bar the \
         reference, red where doorbell takes more</text>\n\
         <text x=\"12\" y=\"58\" fill=\"#555\">{left_out}</text>\n"
    );
    let bottom = TOP + GROUP * shown.len() as f64;
    for tick in axis.ticks() {
        let x = axis.x(tick);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{tick}</text>",
            TOP - 6.0,
            bottom - 6.0,
            TOP - 12.0
        );
    }
    for (i, row) in shown.iter().enumerate() {
        let y = TOP + GROUP * i as f64;
        let _ = writeln!(svg, "<text x=\"12\" y=\"{}\">{}</text>", y + 12.0, row.op);
        let name = &row.reference_name;
        let _ = writeln!(svg, "<text x=\"12\" y=\"{}\" fill=\"#777\">{name}</text>", y + 28.0);
        // Where doorbell takes more than the reference, its bar has another colour.
        let ours = if row.ratio() > 1.0 { "#d62728" } else { "#1f77b4" };
        for (at, value, colour) in [(y, row.doorbell, ours), (y + BAR + 2.0, row.reference, "#bbb")]
        {
            let end = axis.x(value);
            let (x, middle) = (BARS.0, at + 11.5);
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{at}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>\n\
                 <text x=\"{:.1}\" y=\"{middle}\">{value:.2}</text>",
                end - x,
                end + 5.0
            );
        }
    }
    let (device, machine) = (height - 26.0, height - 10.0);
    let _ = writeln!(
        svg,
        "<text x=\"12\" y=\"{device}\" fill=\"#555\">device: none, the rings are memory that no adapter touches</text>\n\
         <text x=\"12\" y=\"{machine}\" fill=\"#555\">{measured}</text>"
    );
    svg.push_str("</svg>\n");
    svg
}

/// The rows with the greatest ratios, which are those that doorbell loses, and of the others some at equal distances; in
/// the order in which they came.
fn choose<'a>(rows: &[&'a Row]) -> Vec<&'a Row> {
    let mut by_ratio: Vec<usize> = (0..rows.len()).collect();
    by_ratio.sort_by(|&a, &b| rows[b].ratio().total_cmp(&rows[a].ratio()));
    let worst = by_ratio.len().min(MOST / 2);
    let rest = &by_ratio[worst..];
    let sample = rest.len().min(MOST - worst);
    let mut chosen = by_ratio[..worst].to_vec();
    // The last one of the sample is the row with the least ratio.
    chosen.extend((1..=sample).map(|i| rest[i * rest.len() / sample - 1]));
    chosen.sort_unstable();
    chosen.into_iter().map(|i| rows[i]).collect()
}

/// A logarithmic axis over whole decades.
struct Axis {
    /// Powers of ten at both ends.
    from: i32,
    to: i32,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64> + Clone) -> Self {
        let positive = values.filter(|&value| value > 0.0);
        let least = positive.clone().fold(f64::INFINITY, f64::min);
        let most = positive.fold(0.0, f64::max);
        if most == 0.0 {
            return Self { from: 0, to: 1 };
        }
        let from = least.log10().floor() as i32;
        Self { from, to: (most.log10().ceil() as i32).max(from + 1) }
    }

    /// Where a value is; what is at or below the axis is at its start.
    fn x(&self, value: f64) -> f64 {
        let share = (value.log10() - f64::from(self.from)) / f64::from(self.to - self.from);
        BARS.0 + (BARS.1 - BARS.0) * share.clamp(0.0, 1.0)
    }

    /// Powers of ten, and between them 2 and 5 where there are few.
    fn ticks(&self) -> Vec<f64> {
        let steps: &[f64] = if self.to - self.from > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let decades = (self.from..self.to).map(|power| 10f64.powi(power));
        let mut ticks: Vec<f64> =
            decades.flat_map(|decade| steps.iter().map(move |step| step * decade)).collect();
        ticks.push(10f64.powi(self.to));
        // 0.1 * 2 and the like, without the digits that are not meant.
        ticks.iter_mut().for_each(|tick| *tick = (*tick * 1e6).round() / 1e6);
        ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(op: usize, doorbell: f64, reference: f64) -> Row {
        Row {
            op: format!("operation {op}"),
            unit: "ns/message",
            doorbell,
            reference,
            reference_name: "libmlx5".to_owned(),
            spread: None,
        }
    }

    #[test]
    fn ten_rows_are_shown_and_those_that_are_lost_are_among_them() {
        let mut rows: Vec<_> = (0..40).map(|i| row(i, 1.0 + i as f64 / 50.0, 20.0)).collect();
        for lost in [3, 17, 38] {
            rows[lost].doorbell = 25.0;
        }
        let rows: Vec<_> = rows.iter().collect();
        let svg = bars("Time", "today, here", &rows);
        for lost in [3, 17, 38] {
            assert!(svg.contains(&format!(">operation {lost}<")), "{svg}");
        }
        // The best one, too.
        assert!(svg.contains(">operation 0<"), "{svg}");
        assert_eq!(svg.matches(">operation ").count(), 10);
        assert_eq!(svg.matches("#d62728").count(), 3);
        assert!(svg.contains("10 of 40 operations") && svg.contains("device: none"), "{svg}");
        let few: Vec<_> = rows.iter().copied().take(4).collect();
        assert_eq!(bars("Time", "", &few).matches(">operation ").count(), 4);
        assert_eq!(choose(&[]).len(), 0);
    }

    #[test]
    fn ticks_are_round_and_values_between_them() {
        let axis = Axis::over([0.7, 18.0].into_iter());
        assert_eq!(axis.ticks(), [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!((axis.x(0.1), axis.x(100.0)), BARS);
        assert!(axis.x(0.7) < axis.x(1.0) && axis.x(10.0) < axis.x(18.0));
        // A step of ten is as wide everywhere.
        assert!((axis.x(10.0) - axis.x(1.0) - (axis.x(1.0) - axis.x(0.1))).abs() < 1e-9);
        assert_eq!(axis.x(0.0), BARS.0);
        let wide = Axis::over([1.0, 30_000.0].into_iter());
        assert_eq!(wide.ticks(), [1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0]);
        assert_eq!(Axis::over([5.0].into_iter()).ticks(), [1.0, 2.0, 5.0, 10.0]);
    }
}
