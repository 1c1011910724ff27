//! What others have written, as people may be shown it: a peer chooses its name, names of files and
//! its reasons, and a terminal obeys escape sequences, turns text around and hides characters.

use std::fmt::{self, Write as _};
use std::io;

/// Bytes for people, so that no two texts look the same: everything that a terminal would not show as
/// a character of its own is written as `\n`, `\u{1b}` or, where it isn't UTF-8, `\xff`; a backslash is
/// doubled.
pub fn escaped<T: AsRef<[u8]> + ?Sized>(text: &T) -> Escaped<'_> {
    Escaped {
        bytes: text.as_ref(),
        backslash: Backslash::Doubled,
    }
}

/// As [`escaped`], for text of which parts are escaped already: backslashes stay as they are.
pub fn printable<T: AsRef<[u8]> + ?Sized>(text: &T) -> Escaped<'_> {
    Escaped {
        bytes: text.as_ref(),
        backslash: Backslash::Kept,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backslash {
    Doubled,
    Kept,
}

/// Text that is escaped while it is displayed.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a> {
    bytes: &'a [u8],
    backslash: Backslash,
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.bytes.utf8_chunks() {
            for c in chunk.valid().chars() {
                self.character(f, c)?;
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl Escaped<'_> {
    fn character(&self, f: &mut fmt::Formatter<'_>, c: char) -> fmt::Result {
        match c {
            '\\' if self.backslash == Backslash::Kept => f.write_char(c),
            // The standard library would escape these for the sake of Rust's syntax.
            '\'' | '"' => f.write_char(c),
            _ if is_invisible(c) => write!(f, "{}", c.escape_unicode()),
            _ if is_combining(c) => f.write_char(c),
            // Escapes control and format characters (bidirectional and zero-width ones are such),
            // line and paragraph separators, odd blanks, private and unassigned ones.
            _ => write!(f, "{}", c.escape_debug()),
        }
    }
}

/// Characters that count as letters or marks and leave nothing to be seen.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}'
        | '\u{e0100}'..='\u{e01ef}')
}

/// Marks that names in decomposed form are full of.
fn is_combining(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{3099}' | '\u{309a}')
}

/// Writes lines on, each escaped: a line that is given in one call stays one line, whatever its author
/// has put into it.
#[derive(Clone, Copy, Debug)]
pub struct EscapedLines<W>(pub W);

impl<W: io::Write> io::Write for EscapedLines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        let mut out = printable(text).to_string();
        if text.len() < line.len() {
            out.push('\n');
        }
        self.0.write_all(out.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write as _;

    #[test]
    fn escape_sequences_and_line_ends_are_shown_not_obeyed() {
        let hostile = "a\u{1b}[2J\u{1b}[31m\r\nroot  rw\u{9b}31m\u{7f}\t\0";
        let shown = r"a\u{1b}[2J\u{1b}[31m\r\nroot  rw\u{9b}31m\u{7f}\t\0";
        assert_eq!(escaped(hostile).to_string(), shown);
    }

    #[test]
    fn text_is_neither_turned_around_nor_hidden() {
        for c in [
            '\u{202e}',
            '\u{2066}',
            '\u{200f}',
            '\u{61c}',
            '\u{200b}',
            '\u{200d}',
            '\u{feff}',
            '\u{ad}',
            '\u{2028}',
            '\u{2029}',
            '\u{85}',
            '\u{a0}',
            '\u{3164}',
            '\u{2800}',
            '\u{fe0f}',
            '\u{e0041}',
            '\u{e0100}',
            '\u{e000}',
            '\u{10ffff}',
            '\u{3000}',
        ] {
            let shown = escaped(&c.to_string()).to_string();
            assert_eq!(shown, format!("\\u{{{:x}}}", u32::from(c)));
        }
    }

    #[test]
    fn what_is_not_text_is_shown_byte_by_byte() {
        assert_eq!(
            escaped(b"a\xff\xc3\xa9\xc3").to_string(),
            "a\\xff\u{e9}\\xc3"
        );
    }

    #[test]
    fn names_of_people_and_their_quotes_stay_readable() {
        for name in ["Zoë's \"notes\".txt", "e\u{301}té", "日本語", "Ω/ñ 😀"] {
            assert_eq!(escaped(name).to_string(), name);
        }
    }

    #[test]
    fn what_is_escaped_already_is_not_escaped_again() {
        let once = escaped("a\\b\n").to_string();
        assert_eq!(once, r"a\\b\n");
        assert_eq!(printable(&once).to_string(), once);
    }

    #[test]
    fn a_line_stays_one_line() {
        let mut out = EscapedLines(Vec::new());
        out.write_all(b"name=a\nINFO forged\n").expect("written");
        out.write_all(b"next\n").expect("written");
        assert_eq!(out.0, b"name=a\\nINFO forged\nnext\n");
    }

    proptest! {
        #[test]
        fn different_texts_look_different_and_nothing_is_left_to_obey(
            a in prop::collection::vec(any::<u8>(), 0..40),
            b in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let (a_shown, b_shown) = (escaped(&a).to_string(), escaped(&b).to_string());
            prop_assert!(a == b || a_shown != b_shown);
            prop_assert!(!a_shown.chars().any(char::is_control));
        }
    }
}
