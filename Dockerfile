# One image for every role; docker-compose.yml says which role a container plays.
FROM python:3.13-slim AS build
COPY requirements.txt /src/
RUN python -m venv /opt/atalaia \
    && /opt/atalaia/bin/pip install --no-cache-dir --only-binary :all: --require-hashes -r /src/requirements.txt
COPY . /src
RUN /opt/atalaia/bin/pip install --no-cache-dir --no-index --no-deps --no-build-isolation /src

FROM python:3.13-slim
RUN useradd --system --create-home --home-dir /var/lib/atalaia atalaia
COPY --from=build /opt/atalaia /opt/atalaia
ENV PATH=/opt/atalaia/bin:$PATH PYTHONUNBUFFERED=1
USER atalaia
WORKDIR /var/lib/atalaia
ENTRYPOINT ["atalaia"]
CMD ["check"]
