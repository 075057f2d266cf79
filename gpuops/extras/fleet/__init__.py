"""Many vCenters: `--site` asks all of them at once (`sites`), runners share their nights (`runner`)."""
