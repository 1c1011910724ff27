//! The coherence programs against a local directory, honest and pretending to be
//! stale.

use super::*;
use std::path::Path;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("leasefs-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a scratch folder");
        Self(path)
    }

    fn three_times(&self) -> Config {
        let mut config = Config::new(vec![self.0.clone(); 3]);
        config.atomic = false;
        config.operations = 4000;
        config
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("the scratch folder goes");
    }
}

fn entries(path: &Path) -> usize {
    std::fs::read_dir(path).expect("a readable folder").count()
}

#[test]
fn a_local_directory_is_coherent_with_itself() {
    let scratch = Scratch::new("coherent");
    let report = run(&scratch.three_times()).expect("a usable directory");
    assert!(report.passed(), "{report}");
    for family in &report.families {
        assert!(family.operations >= 4000, "{family}");
        assert!(family.remote_share() > 0.3, "{family}");
        assert_eq!(family.unanswered, 0, "{family}");
    }
    assert_eq!(entries(&scratch.0), 0);
}

#[test]
fn stale_answers_are_flagged_in_every_family() {
    let scratch = Scratch::new("stale");
    for family in Family::ALL {
        let mut config = scratch.three_times();
        config.families = vec![family];
        // Each worker sees one place a few times only: with 1 % a run may have no stale answer.
        config.pretend_stale = 10;
        let report = run(&config).expect("a usable directory");
        assert!(!report.passed(), "{report}");
        assert!(
            report.to_string().contains("is not linearizable"),
            "{report}"
        );
    }
}

#[test]
fn directories_of_different_exports_are_refused() {
    let (here, there) = (Scratch::new("here"), Scratch::new("there"));
    let config = Config::new(vec![here.0.clone(), there.0.clone()]);
    run(&config).expect_err("the second directory shows other files");
    assert_eq!(entries(&here.0), 0);
}

#[test]
fn cached_share_counts_each_request_as_a_read() {
    let scratch = Scratch::new("shares");
    let mut config = scratch.three_times();
    config.families = vec![Family::Attributes];
    config.read_requests = Some(Arc::new(|_| Some(0)));
    let report = run(&config).expect("a usable directory");
    assert_eq!(report.families[0].cached_share(), Some(1.0));
}
