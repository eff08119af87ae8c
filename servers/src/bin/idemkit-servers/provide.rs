//! The four servers, each by the first way that works.

use crate::container::{Container, sweep};
use crate::failure::Failure;
use crate::way::Way;
use idemkit_servers::{Error, Kind, Local, MissingServer, Options};

/// A server that is there, and what has to be ended when it is no longer needed.
#[derive(Debug)]
pub(crate) struct Provided {
    pub(crate) kind: Kind,
    source: Source,
    /// Why a better way was not taken.
    note: Option<String>,
}

#[derive(Debug)]
enum Source {
    Url,
    Container { container: Box<Container>, image: String },
    Program(Local),
}

impl Provided {
    /// Its URL, where it was not the environment that named it.
    pub(crate) fn url(&self) -> Option<String> {
        match &self.source {
            Source::Url => None,
            Source::Container { container, .. } => Some(container.url().to_owned()),
            Source::Program(server) => Some(server.url()),
        }
    }

    /// One line: which way it came. No URL of the user's own: it may hold a password.
    pub(crate) fn describe(&self) -> String {
        let kind = self.kind;
        let way = match &self.source {
            Source::Url => format!("the URL in {}", kind.url_variable()),
            Source::Container { container, image } => format!("Docker, image {image}, at {}", container.url()),
            Source::Program(server) => format!("program {}, at {}", server.program().display(), server.url()),
        };
        match &self.note {
            Some(note) => format!("{kind}: {way} (not Docker: {note})"),
            None => format!("{kind}: {way}"),
        }
    }

    async fn end(self) {
        match self.source {
            Source::Url => {}
            Source::Container { container, .. } => container.remove().await,
            Source::Program(server) => {
                let kind = self.kind;
                if tokio::task::spawn_blocking(move || drop(server)).await.is_err() {
                    eprintln!("servers: {kind} was not ended in order; its guard ends it");
                }
            }
        }
    }
}

/// All four at once. Where one cannot be had, those that could are ended.
pub(crate) async fn all() -> Result<Vec<Provided>, Failure> {
    let (dynamodb, redis, postgres, mongo) =
        tokio::join!(one(Kind::DynamoDb), one(Kind::Redis), one(Kind::Postgres), one(Kind::Mongo));
    let mut provided = vec![];
    let mut failure = None;
    for result in [dynamodb, redis, postgres, mongo] {
        match result {
            Ok(server) => provided.push(server),
            Err(error) => {
                // Each that is missing is named: who mends one wants to know of the next.
                if let Some(earlier) = failure.replace(error) {
                    eprintln!("servers: {earlier}");
                }
            }
        }
    }
    match failure {
        None => Ok(provided),
        Some(failure) => {
            end_all(provided).await;
            Err(failure)
        }
    }
}

/// Ends them, in whichever way they came, and waits for it.
pub(crate) async fn end_all(provided: Vec<Provided>) {
    for server in provided {
        server.end().await;
    }
}

/// Removes containers whose start was broken off.
pub(crate) async fn sweep_all() {
    for kind in Kind::ALL {
        sweep(kind).await;
    }
}

async fn one(kind: Kind) -> Result<Provided, Failure> {
    match Way::of(kind) {
        Way::Url => Ok(Provided { kind, source: Source::Url, note: None }),
        Way::Program => program(kind, None).await,
        Way::NamedImage(image) => match Container::start(kind, &image).await {
            Ok(container) => {
                Ok(Provided { kind, source: Source::Container { container: Box::new(container), image }, note: None })
            }
            Err(reason) => Err(Failure::Image { kind, image, reason }),
        },
        Way::OfficialImage => {
            let image = kind.official_image().to_owned();
            match Container::start(kind, &image).await {
                Ok(container) => Ok(Provided {
                    kind,
                    source: Source::Container { container: Box::new(container), image },
                    note: None,
                }),
                Err(reason) => program(kind, Some(reason)).await,
            }
        }
    }
}

async fn program(kind: Kind, note: Option<String>) -> Result<Provided, Failure> {
    // Data in memory: who wants to kill a server starts one of their own.
    let started = tokio::task::spawn_blocking(move || Local::start_with(kind, Options::default())).await;
    match started {
        Ok(Ok(server)) => Ok(Provided { kind, source: Source::Program(server), note }),
        Ok(Err(error @ Error::NotInstalled { .. })) => {
            let docker = note.unwrap_or_else(|| format!("{} says none", kind.image_variable()));
            let reasons = format!("\nDocker: {docker}\nProgram: {error}");
            Err(MissingServer { kind, reasons }.into())
        }
        Ok(Err(error)) => Err(error.into()),
        Err(error) => Err(Failure::Refused(format!("{kind}: its start was broken off: {error}"))),
    }
}
