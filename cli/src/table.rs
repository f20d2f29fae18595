//! Tables of words and figures on standard output.

/// Columns as wide as their widest cell; the first to the left, the others to the right.
pub fn aligned<const N: usize>(head: &[&str; N], rows: &[[String; N]]) -> String {
    let head: Vec<&str> = head.to_vec();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.to_vec()).collect();
    aligned_rows(&head, &rows)
}

/// As [`aligned`], where the number of columns is not known beforehand. A row may be
/// shorter than the head.
pub fn aligned_rows(head: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |row: &Vec<String>, column: usize| -> usize {
        row.get(column).map_or(0, |cell| cell.chars().count())
    };
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let widest = rows.iter().map(|row| cells(row, column)).max().unwrap_or(0);
            widest.max(head[column].chars().count())
        })
        .collect();
    let head: Vec<String> = head.iter().map(|word| (*word).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&head).chain(rows) {
        let cells: Vec<_> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, &width))| {
                if column == 0 {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            })
            .collect();
        text.push_str("  ");
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_column_is_to_the_left_and_the_others_to_the_right() {
        let rows = [
            ["a".to_owned(), "1".to_owned()],
            ["bb".to_owned(), "22".to_owned()],
        ];
        assert_eq!(
            aligned(&["x", "µs"], &rows),
            "  x   µs\n  a    1\n  bb  22\n"
        );
    }
}
