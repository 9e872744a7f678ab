//! Bar charts in SVG.

use std::fmt::Write as _;

use crate::report::Row;

const WIDTH: f64 = 860.0;
/// Where bars begin and end.
const BARS: (f64, f64) = (340.0, 790.0);
const BAR: f64 = 14.0;
const GROUP: f64 = 42.0;
const TOP: f64 = 64.0;

/// Two bars for each row: doorbell, and what it is compared with. `measured` says when and on what.
pub fn bars(title: &str, measured: &str, rows: &[&Row]) -> String {
    let height = TOP + GROUP * rows.len() as f64 + 24.0;
    let largest = rows.iter().map(|row| row.doorbell.max(row.reference)).fold(0.0, f64::max);
    let unit = rows.first().map_or("", |row| row.unit);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"16\">{title}</text>\n\
         <text x=\"12\" y=\"44\" fill=\"#555\">{unit}; upper bar doorbell, lower bar the reference</text>\n"
    );
    for (i, row) in rows.iter().enumerate() {
        let y = TOP + GROUP * i as f64;
        let _ = writeln!(svg, "<text x=\"12\" y=\"{}\">{}</text>", y + 12.0, row.op);
        let name = &row.reference_name;
        let _ = writeln!(svg, "<text x=\"12\" y=\"{}\" fill=\"#777\">{name}</text>", y + 28.0);
        for (at, value, colour) in
            [(y, row.doorbell, "#1f77b4"), (y + BAR + 2.0, row.reference, "#bbb")]
        {
            let length = (BARS.1 - BARS.0) * value / largest;
            let (x, middle) = (BARS.0, at + 11.5);
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{at}\" width=\"{length:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>\n\
                 <text x=\"{:.1}\" y=\"{middle}\">{value:.2}</text>",
                x + length + 5.0
            );
        }
    }
    let bottom = height - 10.0;
    let _ = writeln!(svg, "<text x=\"12\" y=\"{bottom}\" fill=\"#555\">{measured}</text>");
    svg.push_str("</svg>\n");
    svg
}
