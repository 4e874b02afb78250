"""The gateway's live page: sites and lines, requests on their way, the last ones, what fails."""
