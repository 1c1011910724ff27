//! What stands at the end of each command's help, and in its man page.

pub(super) const PROGRAM: &str = "\
Examples:
  fsclient mount @ticket /mnt/data
      the first time, with the ticket in a file
  fsclient status
  fsclient umount /mnt/data";

pub(super) const MOUNT: &str = "\
Examples:
  fsclient mount - /mnt/data
      reads a ticket from standard input: it isn't seen in the process list
  fsclient mount storage.example:/ /mnt/data
      from then on
  fsclient mount storage.example:4431:/projects/one /mnt/one --read-only
      another port, a directory, and no changes";

pub(super) const UMOUNT: &str = "\
Examples:
  fsclient umount /mnt/data
  fsclient umount /mnt/data /mnt/one
  fsclient umount --force /mnt/data
      although it is in use, or its server is away";

pub(super) const ELECT: &str = "\
Examples:
  fsclient elect /mnt/jobs/nightly -- /usr/local/bin/nightly --all
      waits until no other machine runs it
  fsclient elect --nonblock /mnt/jobs/nightly -- make -C /mnt/jobs
      exits with 1 if another one does";

pub(super) const STATUS: &str = "\
Examples:
  fsclient status
  fsclient status /mnt/data --json
      for programs";

pub(super) const RECOVER: &str = "\
Examples:
  fsclient recover list
  fsclient recover diff 3f09c2d1
  fsclient recover restore 3f09c2d1
  fsclient recover discard 3f09c2d1";

pub(super) const LIST: &str = "\
Examples:
  fsclient recover list
  fsclient recover list --json
      for programs";

pub(super) const DIFF: &str = "\
Examples:
  fsclient recover diff 3f09c2d1
  fsclient recover diff 3f09c2d1 --mount /mnt/other
      the same files are mounted there";

pub(super) const RESTORE: &str = "\
Examples:
  fsclient recover restore 3f09c2d1
      beside the file, as NAME.recovered-3f09c2d1
  fsclient recover restore 3f09c2d1 --as /tmp/rescued
      where there is no mount of it";

pub(super) const DISCARD: &str = "\
Examples:
  fsclient recover discard 3f09c2d1
      for good";

pub(super) const TOP: &str = "\
Examples:
  fsclient top
  fsclient top --lines --interval 10
      a report each ten seconds";

pub(super) const WHY: &str = "\
Examples:
  fsclient why /mnt/data/report.txt
  fsclient why /mnt/data --json
      for programs";

pub(super) const DOCTOR: &str = "\
Examples:
  fsclient doctor
      all servers with which this client is enrolled
  fsclient doctor storage.example
      one, enrolled or not";

pub(super) const FORGET: &str = "\
Examples:
  fsclient forget old.example
      it is gone for good: `fsclient doctor` doesn't look for it any more";

pub(super) const HELPER: &str = "\
Examples:
  mount -t leasefs nas.example:/ /mnt/data -o timeout=30s
  nas.example:/       /mnt/data  leasefs  _netdev,nofail              0 0
      in /etc/fstab
  nas.example:/home   /mnt/home  leasefs  _netdev,x-systemd.automount 0 0
      mounted when it is first looked at";
