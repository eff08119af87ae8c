//! A server in Docker, through testcontainers.

use idemkit_servers::{Kind, Place, wait_until_ready};
use std::collections::HashMap;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use testcontainers::bollard::models::PortBinding;
use testcontainers::bollard::query_parameters::RemoveContainerOptionsBuilder;
use testcontainers::core::ContainerPort;
use testcontainers::core::Mount;
use testcontainers::core::client::docker_client_instance;
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, ContainerRequest, GenericImage, ImageExt};
use tokio::time::timeout;

/// To say that it is there.
const ENGINE_WITHIN: Duration = Duration::from_secs(5);
/// For some hundred megabytes over a slow line.
const PULLED_WITHIN: Duration = Duration::from_secs(300);
/// To run at all, once the image is there.
const STARTED_WITHIN: Duration = Duration::from_secs(60);
/// To answer, once it runs.
const READY_WITHIN: Duration = Duration::from_secs(60);
const REMOVED_WITHIN: Duration = Duration::from_secs(20);

/// Removed by [`Container::remove`], or when dropped. Never in a `static`, which is not dropped.
#[derive(Debug)]
pub(crate) struct Container {
    handle: ContainerAsync<GenericImage>,
    url: String,
}

impl Container {
    /// Starts one and waits until it answers. The error is one line.
    pub(crate) async fn start(kind: Kind, image: &str) -> Result<Self, String> {
        engine().await?;
        let started = match timeout(PULLED_WITHIN + STARTED_WITHIN, request(kind, image).start()).await {
            Ok(Ok(handle)) => Self::ready(kind, handle).await,
            Ok(Err(error)) => Err(one_line(&error)),
            Err(_) => Err(format!("not started within {} s", (PULLED_WITHIN + STARTED_WITHIN).as_secs())),
        };
        if started.is_err() {
            // testcontainers leaves behind a container that was made and did not start.
            sweep(kind).await;
        }
        started
    }

    async fn ready(kind: Kind, handle: ContainerAsync<GenericImage>) -> Result<Self, String> {
        let own_port = kind.usual_port();
        let port = handle.get_host_port_ipv4(own_port).await.map_err(|error| one_line(&error))?;
        let place = Place { address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)), own_port };
        let answered =
            tokio::task::spawn_blocking(move || wait_until_ready(kind, place, READY_WITHIN, || Ok(()))).await;
        match answered {
            Ok(Ok(())) => Ok(Self { handle, url: kind.url_at(port) }),
            Ok(Err(error)) => Err(format!("{} ({})", one_line(&error), last_words(&handle).await)),
            Err(error) => Err(one_line(&error)),
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Waits until it is gone, which a drop cannot report on.
    pub(crate) async fn remove(self) {
        let id = self.handle.id().to_owned();
        match timeout(REMOVED_WITHIN, self.handle.rm()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("servers: container {id} was not removed: {}", one_line(&error)),
            Err(_) => eprintln!("servers: container {id} was not removed within {} s", REMOVED_WITHIN.as_secs()),
        }
    }
}

/// Whether an image is here or can be had. The error is one line.
pub(crate) async fn available(kind: Kind, image: &str) -> Result<(), String> {
    engine().await?;
    let docker = docker_client_instance().await.map_err(|error| one_line(&error))?;
    if matches!(timeout(ENGINE_WITHIN, docker.inspect_image(image)).await, Ok(Ok(_))) {
        return Ok(());
    }
    match timeout(PULLED_WITHIN, request(kind, image).pull_image()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(one_line(&error)),
        Err(_) => Err(format!("not pulled within {} s", PULLED_WITHIN.as_secs())),
    }
}

/// Removes what a start that failed or was broken off may have left.
pub(crate) async fn sweep(kind: Kind) {
    let Ok(docker) = docker_client_instance().await else { return };
    let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    // Mostly there is none, which is an error too.
    let _ = timeout(REMOVED_WITHIN, docker.remove_container(&name(kind), Some(options))).await;
}

/// Of this process, so that several may run side by side.
fn name(kind: Kind) -> String {
    format!("idemkit-test-{kind}-{}", std::process::id())
}

async fn engine() -> Result<(), String> {
    let docker = docker_client_instance().await.map_err(|error| one_line(&error))?;
    match timeout(ENGINE_WITHIN, docker.ping()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(format!("no Docker engine: {}", one_line(&error))),
        Err(_) => Err(format!("Docker's engine does not answer within {} s", ENGINE_WITHIN.as_secs())),
    }
}

/// The container as it is to be made. The arguments are those of the official images; a named image has to take them
/// too.
fn request(kind: Kind, image: &str) -> ContainerRequest<GenericImage> {
    let (repository, tag) = repository_and_tag(image);
    let port = ContainerPort::Tcp(kind.usual_port());
    let request = GenericImage::new(repository, tag)
        .with_exposed_port(port)
        .with_cmd(arguments(kind).iter().copied())
        .with_container_name(name(kind))
        .with_startup_timeout(STARTED_WITHIN)
        // On loopback alone: these servers let everybody in. Without a number the engine picks a free port.
        .with_host_config_modifier(move |host| {
            let binding = PortBinding { host_ip: Some(Ipv4Addr::LOCALHOST.to_string()), host_port: None };
            host.publish_all_ports = Some(false);
            host.port_bindings = Some(HashMap::from([(port.to_string(), Some(vec![binding]))]));
        });
    match kind {
        Kind::Postgres => request.with_env_var("POSTGRES_PASSWORD", "postgres"),
        // In memory: it forces each write to the disk, where it would wait for whatever else the machine writes.
        Kind::Mongo => request.with_mount(Mount::tmpfs_mount("/data/db")),
        Kind::DynamoDb | Kind::Redis => request,
    }
}

const fn arguments(kind: Kind) -> &'static [&'static str] {
    match kind {
        // Shared: one database whatever region and key a client names.
        Kind::DynamoDb => &["-jar", "DynamoDBLocal.jar", "-inMemory", "-sharedDb"],
        Kind::Redis => &["--save", "", "--appendonly", "no"],
        Kind::Postgres => &["-c", "fsync=off", "-c", "max_connections=300", "-c", "wal_level=logical"],
        Kind::Mongo => &["--replSet", "rs0", "--bind_ip_all"],
    }
}

/// `repository:tag`, where a colon may also stand before the port of a registry. A digest is split at its own colon,
/// which testcontainers puts back.
fn repository_and_tag(image: &str) -> (String, String) {
    match image.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository.to_owned(), tag.to_owned()),
        _ => (image.to_owned(), "latest".to_owned()),
    }
}

/// The end of what a container wrote.
async fn last_words(handle: &ContainerAsync<GenericImage>) -> String {
    let written = async {
        let mut all = handle.stdout_to_vec().await.unwrap_or_default();
        all.extend(handle.stderr_to_vec().await.unwrap_or_default());
        all
    };
    let all = timeout(ENGINE_WITHIN, written).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&all);
    let last: Vec<&str> = text.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
    format!("it wrote last: {}", last.into_iter().rev().collect::<Vec<_>>().join(" / "))
}

/// An error with its causes, where its own text leaves them out.
fn one_line(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !line.contains(&cause_text) {
            line = format!("{line}: {cause_text}");
        }
        source = cause.source();
    }
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_split_where_its_tag_begins() {
        for (image, repository, tag) in [
            ("redis", "redis", "latest"),
            ("redis:7.4-bookworm", "redis", "7.4-bookworm"),
            ("localhost:5000/redis", "localhost:5000/redis", "latest"),
            ("localhost:5000/redis:7", "localhost:5000/redis", "7"),
            ("redis@sha256:abc", "redis@sha256", "abc"),
        ] {
            assert_eq!(repository_and_tag(image), (repository.into(), tag.into()), "{image}");
        }
    }

    #[test]
    fn causes_are_named_once() {
        let inner = std::io::Error::other("no\n  such host");
        let outer = idemkit_servers::Error::System { what: "pull".into(), source: inner };
        assert_eq!(one_line(&outer), "pull: no such host");
    }
}
