//! What stands at the end of each command's help, and in its man page.

pub(super) const PROGRAM: &str = "\
Examples:
  fsserver serve /srv/data
      serves /srv/data; the first start prints a ticket
  fsserver ticket
      prints a ticket for one more client";

pub(super) const SERVE: &str = "\
Examples:
  fsserver serve /srv/data
      as root, state in /var/lib/leasefs; the first start prints a ticket
  fsserver serve /srv/data --advertise storage.example:4430
      tickets name the host as clients reach it
  fsserver serve /srv/two --listen '[::]:4431' --state /var/lib/leasefs-two
      a second directory of the same host";

pub(super) const TICKET: &str = "\
Examples:
  fsserver ticket
      what the server's policy gives
  fsserver ticket --read-only --subdir projects/one
      may read one directory
  fsserver ticket --as 1000:1000
      whatever its machine says, it has the rights of that user
  fsserver ticket --trust
      its root is root on the export";

pub(super) const CLIENTS: &str = "\
Examples:
  fsserver clients
  fsserver clients --state /var/lib/leasefs/exports/srv-data
      of fsserver@srv-data.service";

pub(super) const REVOKE: &str = "\
Examples:
  fsserver revoke laptop
  fsserver revoke 4f09c2
      by the beginning of its key";

pub(super) const STATUS: &str = "\
Examples:
  fsserver status
  fsserver status --json
      for programs";

pub(super) const TOP: &str = "\
Examples:
  fsserver top
  fsserver top --lines --count 1
      one look, for a program or a log";
