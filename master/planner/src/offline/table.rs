//! Tables of comma-separated values: names in the first line, then one row for each.

use super::bad_input::BadInput;

/// Cells with the numbers of their lines.
pub(super) struct Table {
    pub(super) names: Vec<String>,
    /// Row by row, as written; the row and column of a peer have its place among the names.
    pub(super) cells: Vec<String>,
    /// The line of each row.
    pub(super) lines: Vec<usize>,
}

/// Reads a table. Rows may begin with the name of the row's peer; the header then has an empty or any other cell in
/// front. Named rows may come in any order.
pub(super) fn read(text: &str) -> Result<Table, BadInput> {
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if !line.trim().is_empty() {
            lines.push((at + 1, split(line, at + 1)?));
        }
    }
    let Some((header_line, header)) = lines.first().cloned() else {
        return Err(BadInput::new(1, "the file is empty; it begins with a line of names"));
    };
    let rows = &lines[1..];
    let is_named = header.len() == rows.len() + 1;
    let names: Vec<String> = header[usize::from(is_named)..].to_vec();
    let n = names.len();
    check_names(&names, header_line)?;
    if rows.len() != n {
        let last = lines.last().map_or(1, |(line, _)| *line);
        return Err(BadInput::new(last, format!("{n} names in line {header_line}, but {} rows", rows.len())));
    }
    let mut table = Table { cells: vec![String::new(); n * n], lines: vec![0; n], names };
    for (at, (line, row)) in rows.iter().enumerate() {
        let wanted = n + usize::from(is_named);
        if row.len() != wanted {
            return Err(BadInput::new(*line, format!("{} cells; {wanted} are needed", row.len())));
        }
        let place = if is_named { table.place(&row[0], *line)? } else { at };
        if table.lines[place] != 0 {
            let text = format!("{:?} has a row already, in line {}", row[0], table.lines[place]);
            return Err(BadInput::new(*line, text));
        }
        table.lines[place] = *line;
        table.cells[place * n..(place + 1) * n].clone_from_slice(&row[usize::from(is_named)..]);
    }
    Ok(table)
}

impl Table {
    fn place(&self, name: &str, line: usize) -> Result<usize, BadInput> {
        let place = self.names.iter().position(|other| other == name);
        place.ok_or_else(|| BadInput::new(line, format!("{name:?} is not among the names of the first line")))
    }
}

fn check_names(names: &[String], line: usize) -> Result<(), BadInput> {
    for (at, name) in names.iter().enumerate() {
        if name.is_empty() {
            return Err(BadInput::new(line, format!("name {} is empty", at + 1)));
        }
        if names[..at].contains(name) {
            return Err(BadInput::new(line, format!("the name {name:?} occurs twice")));
        }
    }
    Ok(())
}

/// The cells of a line, without blanks around them. A cell in double quotes may have commas in it, and doubled quotes.
fn split(line: &str, number: usize) -> Result<Vec<String>, BadInput> {
    let mut cells = vec![String::new()];
    let mut is_quoted = false;
    let mut characters = line.trim_start_matches('\u{feff}').chars().peekable();
    while let Some(character) = characters.next() {
        let Some(cell) = cells.last_mut() else { break };
        match character {
            '"' if is_quoted && characters.next_if_eq(&'"').is_some() => cell.push('"'),
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            other => cell.push(other),
        }
    }
    if is_quoted {
        return Err(BadInput::new(number, "a quote is not closed"));
    }
    Ok(cells.iter().map(|cell| cell.trim().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rows_are_optional_and_in_any_order() {
        let plain = read("a,b\n,1\n2,\n").unwrap();
        let named = read("\u{feff}from,a, \"b\" \r\n\r\nb,2,\r\na,,1\r\n").unwrap();
        assert_eq!(plain.names, ["a", "b"]);
        assert_eq!((&plain.names, &plain.cells), (&named.names, &named.cells));
        assert_eq!((plain.lines, named.lines), (vec![2, 3], vec![4, 3]));
        assert_eq!(split("\"a,\"\"b\",c", 1).unwrap(), ["a,\"b", "c"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, line, part) in [
            ("", 1, "empty"),
            ("a,a\n1,2\n3,4\n", 1, "twice"),
            ("a,\n1,2\n3,4\n", 1, "name 2 is empty"),
            ("a,b,c\n,1,2\n", 2, "but 1 rows"),
            ("a,b\n,1\n2\n", 3, "1 cells; 2 are needed"),
            ("-,a,b\na,,1\n\nx,2,\n", 4, "not among"),
            ("-,a,b\na,,1\na,2,\n", 3, "line 2"),
            ("a,b\n,1\n\"2,\n", 3, "quote"),
        ] {
            let error = read(text).err().unwrap();
            assert_eq!(error.line, line, "{text:?}: {error}");
            assert!(error.to_string().contains(part), "{text:?}: {error}");
        }
    }
}
