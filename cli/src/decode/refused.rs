//! Causes of refused calls, as they were measured on the stock libmlx5: the table of the page "Refused calls".

const PAGE: &str = include_str!("refused_calls.md");

/// Returns call, cause and errno of each row.
fn rows() -> impl Iterator<Item = (&'static str, &'static str, u64)> {
    PAGE.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
        let (call, cause) = (cells.next()?.trim_end_matches('`'), cells.next()?);
        Some((call, cause, cells.next()?.parse().ok()?))
    })
}

/// Returns the causes for which a call gives this errno.
pub fn causes(call: &str, errno: u64) -> Vec<&'static str> {
    rows().filter(|row| row.0 == call && row.2 == errno).map(|row| row.1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_doorbell_in_the_table_exist() {
        let texts = include_str!("error_texts.txt");
        let names = PAGE.lines().filter(|line| line.starts_with("| `ibv")).filter_map(|line| line.rsplit('`').nth(1));
        let names: Vec<_> = names.filter(|name| name.contains("::")).collect();
        for name in &names {
            assert!(texts.contains(&format!("{name}: ")), "{name} is no error of doorbell");
        }
        assert!(names.len() > 8, "{names:?}");
    }

    #[test]
    fn the_causes_of_a_full_queue_are_not_alone() {
        assert_eq!(causes("ibv_post_send", 12).len(), 6);
        assert_eq!(causes("ibv_post_send", 22).len(), 2);
        assert!(causes("ibv_post_send", 5).is_empty());
    }
}
