//! Lines of pasted text, without the additions of mail programs and terminals.

/// A line.
#[derive(Debug)]
pub struct Line {
    /// From 1.
    pub number: usize,
    /// Without quotation marks of mail and without colours.
    pub text: String,
}

/// Returns the lines of a text in any encoding.
pub fn lines(input: &[u8]) -> Vec<Line> {
    let text = String::from_utf8_lossy(input);
    // Mail that was saved without decoding.
    let quoted_printable = text.contains("=0A=") || text.contains("=3D");
    let mut lines: Vec<Line> = Vec::new();
    let mut continues = false;
    for (number, raw) in text.split('\n').enumerate() {
        let mut line = without_colours(raw.trim_end_matches('\r'));
        let mut ends = true;
        if quoted_printable {
            if let Some(cut) = line.strip_suffix('=') {
                ends = cut.ends_with("=0A");
                line = cut.trim_end_matches("=0A").to_owned();
            }
            line = line.replace("=3D", "=").replace("=20", " ").replace("=0A", "");
        }
        let unquoted = unquote(&line);
        match lines.last_mut().filter(|_| continues) {
            Some(last) => last.text.push_str(unquoted),
            None => lines.push(Line { number: number + 1, text: unquoted.to_owned() }),
        }
        continues = !ends;
    }
    lines
}

fn unquote(line: &str) -> &str {
    line.trim_start_matches(['>', ' ', '\t']).trim_end()
}

fn without_colours(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("\x1b[") {
        out.push_str(&rest[..at]);
        rest = &rest[at + 2..];
        let end = rest.find(|c: char| c.is_ascii_alphabetic()).map_or(rest.len(), |end| end + 1);
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// Says which dumps of other adapters the text has.
pub fn foreign_formats(lines: &[Line], notes: &mut Vec<String>) {
    let mlx4 = |line: &&Line| {
        line.text.contains("(QPN ") && line.text.contains("WQE @") && line.text.contains("CQN ")
    };
    if let Some(line) = lines.iter().find(mlx4) {
        notes.push(format!(
            "line {}: a dump of libmlx4 (ConnectX-3 and older), whose CQEs have another layout: not decoded",
            line.number
        ));
    }
    if let Some(line) = lines.iter().find(|line| line.text.contains("mcxnex")) {
        notes.push(format!(
            "line {}: the Solaris driver of ConnectX-2, whose CQEs have another layout",
            line.number
        ));
    }
    if let Some(line) = lines
        .iter()
        .find(|line| line.text.contains("mlx5_cmd_check") || line.text.contains("mlx5_cmd_out_err"))
    {
        notes.push(format!(
            "line {}: a command that the firmware refused. The syndrome of a command (six digits) is not that of a CQE: only \
             NVIDIA can look it up",
            line.number
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(input: &str) -> Vec<String> {
        lines(input.as_bytes()).into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn quotations_and_colours_go() {
        assert_eq!(texts("> > >  00 11\r\n\x1b[31mred\x1b[0m x"), ["00 11", "red x"]);
    }

    #[test]
    fn mail_as_it_came_over_the_wire() {
        let mail = "WC err=\nor: 4=0A=\n[  1.2] 00000000: 00 e2=0A=\nstatus=3D5";
        assert_eq!(texts(mail), ["WC error: 4", "[  1.2] 00000000: 00 e2", "status=5"]);
        assert_eq!(texts("a =\nb"), ["a =", "b"], "without a sign of it nothing is joined");
    }
}
