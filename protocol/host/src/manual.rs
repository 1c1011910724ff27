//! Man pages and completions of a program, from what its command line is made of.

use clap::Command;
use clap::builder::Resettable;
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::io;
use std::path::Path;

/// What the examples in a command's help begin with.
const HEADING: &str = "Examples:";

/// Where each shell looks for completions below a `share` folder.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Zsh, "zsh/site-functions"),
    (Shell::Fish, "fish/vendor_completions.d"),
];

/// Writes the pages of a program and of its commands, and its completions, where a `share` folder has them.
///
/// # Errors
/// What can't be written there.
pub fn write(program: &Command, share: &Path) -> io::Result<()> {
    put(
        pages(program).into_iter().chain(completions(program)),
        share,
    )
}

/// Writes the page of what mount(8) runs, which nobody types.
///
/// # Errors
/// As [`write()`].
pub fn write_helper(program: &Command, share: &Path) -> io::Result<()> {
    put([page(program, "8")], share)
}

fn put(files: impl IntoIterator<Item = (String, Vec<u8>)>, share: &Path) -> io::Result<()> {
    for (path, text) in files {
        let path = share.join(path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, text)?;
    }
    Ok(())
}

/// The man pages of a program and of all its commands that aren't hidden, each with its path.
pub fn pages(program: &Command) -> Vec<(String, Vec<u8>)> {
    let mut program = program.clone().disable_help_subcommand(true);
    program.build();
    let mut pages = Vec::new();
    add_pages(&program, &mut pages);
    pages
}

/// What a program's pages don't tell, or tell wrongly: a command without a word about it or without examples, an example
/// that isn't understood. For its tests.
pub fn flaws(program: &Command) -> Vec<String> {
    let mut flaws = Vec::new();
    for (path, page) in pages(program) {
        let page = String::from_utf8_lossy(&page);
        let page = page.replace("\\-", "-").replace("\\*(Aq", "");
        let (about, examples) = page.split_once(".SH EXAMPLES").unwrap_or((&page, ""));
        let name = about.split_once(".SH NAME\n").unwrap_or_default().1;
        if !name.lines().next().unwrap_or_default().contains(" - ") {
            flaws.push(format!("{path}: what is it for?"));
        }
        let call = format!("  {} ", program.get_name());
        let calls = examples.lines().filter(|line| line.starts_with(&call));
        if calls.clone().next().is_none() {
            flaws.push(format!("{path}: no example"));
        }
        let parse = |line: &str| {
            program
                .clone()
                .try_get_matches_from(line.split_whitespace())
        };
        let wrong = calls.filter_map(|line| Some((line, parse(line).err()?)));
        flaws.extend(wrong.map(|(line, error)| format!("{path}: {line}: {error}")));
    }
    flaws
}

fn add_pages(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) {
    pages.push(page(command, "1"));
    for part in command.get_subcommands().filter(|part| !part.is_hide_set()) {
        add_pages(part, pages);
    }
}

fn page(command: &Command, section: &str) -> (String, Vec<u8>) {
    let man = Man::new(command.clone().after_long_help(Resettable::Reset))
        .section(section)
        // An empty one would be left out, and what follows taken for it.
        .date(" ")
        .source(concat!("leasefs ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    // Writing to memory doesn't fail.
    let _ = man.render(&mut text);
    let _ = examples(command).to_writer(&mut text);
    (format!("man/man{section}/{}", man.get_filename()), text)
}

/// Commands, line by line: not filled as text is.
fn examples(command: &Command) -> Roff {
    let mut section = Roff::new();
    let Some(examples) = command.get_after_long_help() else {
        return section;
    };
    section.control("SH", ["EXAMPLES"]).control("nf", []);
    let examples = examples.to_string();
    let lines = examples.strip_prefix(HEADING).unwrap_or(&examples);
    for line in lines.trim_start_matches('\n').lines() {
        section.text([roman(line)]);
    }
    section.control("fi", []);
    section
}

fn completions(program: &Command) -> Vec<(String, Vec<u8>)> {
    let of = |(shell, folder): (Shell, &str)| {
        let mut program = visible(program);
        let name = program.get_name().to_owned();
        let mut text = Vec::new();
        generate(shell, &mut program, &name, &mut text);
        let file = match shell {
            Shell::Zsh => format!("_{name}"),
            Shell::Fish => format!("{name}.fish"),
            _ => name,
        };
        (format!("{folder}/{file}"), text)
    };
    SHELLS.into_iter().map(of).collect()
}

/// The command without what is hidden: shells would offer that.
fn visible(command: &Command) -> Command {
    let parts = command.get_subcommands().filter(|part| !part.is_hide_set());
    let mut copy = Command::new(command.get_name().to_owned())
        .args(command.get_arguments())
        .subcommands(parts.map(visible));
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        copy = copy.version(version.to_owned());
    }
    copy
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    fn program() -> Command {
        let go = Command::new("go")
            .about("Goes somewhere")
            .arg(Arg::new("fast").long("fast").help("Hurry"))
            .after_long_help("Examples:\n  trip go --fast 'a\\b'\n      .now\n");
        let inside = Command::new("inside").about("Not for people").hide(true);
        Command::new("trip")
            .about("Travels")
            .subcommands([go, inside])
    }

    fn text(files: Vec<(String, Vec<u8>)>, path: &str) -> String {
        let mut found = files.into_iter().filter(|(name, _)| name == path);
        let (_, text) = found.next().expect("such a file");
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn each_command_that_people_see_has_a_page() {
        let paths: Vec<String> = pages(&program())
            .into_iter()
            .map(|(path, _)| path)
            .collect();
        assert_eq!(paths, ["man/man1/trip.1", "man/man1/trip-go.1"]);
    }

    #[test]
    fn a_page_shows_examples_line_by_line_and_as_they_are() {
        let page = text(pages(&program()), "man/man1/trip-go.1");
        assert!(page.contains("trip\\-go \\- Goes somewhere"), "{page}");
        let (_, examples) = page.split_once(".SH EXAMPLES\n.nf\n").expect("examples");
        assert_eq!(
            examples,
            "  trip go \\-\\-fast \\*(Aqa\\\\b\\*(Aq\n      .now\n.fi\n"
        );
    }

    #[test]
    fn a_page_without_examples_or_with_one_that_is_not_understood_is_told() {
        let stray = Command::new("stray").after_long_help("Examples:\n  trip stray --fast\n");
        let flaws = flaws(&program().subcommand(stray));
        let [none, purpose, wrong] = &flaws[..] else {
            panic!("{flaws:?}")
        };
        assert_eq!(none, "man/man1/trip.1: no example");
        assert_eq!(purpose, "man/man1/trip-stray.1: what is it for?");
        assert!(
            wrong.starts_with("man/man1/trip-stray.1:   trip stray --fast: error"),
            "{wrong}"
        );
    }

    #[test]
    fn each_shell_completes_what_people_see() {
        for path in [
            "bash-completion/completions/trip",
            "zsh/site-functions/_trip",
            "fish/vendor_completions.d/trip.fish",
        ] {
            let script = text(completions(&program()), path);
            assert!(script.contains("fast"), "{script}");
            assert!(!script.contains("inside"), "{script}");
        }
    }
}
